//! Constants of arithmetic with residues, computed anew.

use super::*;

/// Whole numbers in limbs of so many bits, the lowest first.
const LIMB_BITS: u32 = 18;
const LIMBS: usize = 8;

/// What residues_split.comp adds to whole numbers.
const OFFSET: u64 = 1 << 61;

fn times(x: [u64; LIMBS], factor: u64) -> [u64; LIMBS] {
    let mut carry = 0;
    let product = x.map(|limb| {
        let sum = limb * factor + carry;
        carry = sum >> LIMB_BITS;
        sum & ((1 << LIMB_BITS) - 1)
    });
    assert_eq!(carry, 0);
    product
}

fn product(of: impl IntoIterator<Item = u64>) -> [u64; LIMBS] {
    let one = std::array::from_fn(|k| u64::from(k == 0));
    of.into_iter().fold(one, times)
}

/// Numbers of a line or several of GLSL, which begin with a name.
fn numbers(text: &str, name: &str) -> Vec<u64> {
    let from = text.find(name).unwrap_or_else(|| panic!("no {name}")) + name.len();
    let text = &text[from..];
    let text = &text[text.find("](").unwrap() + 2..text.find(";").unwrap()];
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let digits = words.filter_map(|word| word.strip_suffix('u'));
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    };
    digits.filter_map(number).collect()
}

#[test]
fn templates_have_the_constants_of_the_moduli() {
    let text = include_str!("../residues_moduli.glsl");
    let moduli = MODULI.map(u64::from);
    assert_eq!(numbers(text, "MODULUS[MOST_MODULI]"), moduli);
    assert!(text.contains("#define MOST_MODULI 18") && text.contains(&format!("OFFSET_HIGH 0x{:x}u", OFFSET >> 32)));
    let negative = |modulus: u64| (modulus - OFFSET % modulus + 128) % modulus;
    let split = |m: &u64| [(1 << 22) % m, (1 << 44) % m, negative(*m), (1u64 << 39).div_ceil(*m)];
    assert_eq!(numbers(text, "SPLIT[MOST_MODULI]"), moduli.iter().flat_map(split).collect::<Vec<u64>>());
    for (place, modulus) in moduli.iter().enumerate() {
        let divides = |by: &u64| (2..=*by).any(|n| by.is_multiple_of(n) && modulus.is_multiple_of(n));
        assert!(!moduli[..place].iter().any(divides), "{modulus}");
    }
}

#[test]
fn templates_have_the_weights_of_residues() {
    let text = include_str!("../residues_weights.glsl");
    for count in LEAST_MODULI..=MODULI.len() {
        let text = &text[text.find(&format!("#if MODULI == {count}\n")).unwrap()..];
        let moduli: Vec<u64> = MODULI[..count].iter().copied().map(u64::from).collect();
        let (mut weights, mut shares) = (vec![], vec![]);
        for (place, &modulus) in moduli.iter().enumerate() {
            let others = || moduli.iter().enumerate().filter(|(k, _)| *k != place).map(|(_, &other)| other);
            let rest = others().fold(1, |rest, other| rest * other % modulus);
            let inverse = (1..modulus).find(|n| n * rest % modulus == 1).unwrap();
            weights.extend(times(product(others()), inverse));
            shares.push((2 * inverse * (1 << 19) + modulus) / (2 * modulus));
        }
        assert_eq!(numbers(text, "WEIGHT[MODULI][8]"), weights, "{count}");
        assert_eq!(numbers(text, "SHARE[MODULI]"), shares, "{count}");
        assert_eq!(numbers(text, "PRODUCT[8]"), product(moduli), "{count}");
    }
}

#[test]
fn sums_fit_between_the_moduli() {
    let mut last = None;
    for depth in (1..=4096).chain((12..22).flat_map(|bits| [1 << bits, (1 << bits) + 1])) {
        let Some(form) = Residues::of(depth) else {
            assert!(depth > 1 << 21, "{depth}");
            continue;
        };
        let bits: f64 = MODULI[..usize::from(form.moduli)].iter().map(|&modulus| f64::from(modulus).log2()).sum();
        let of_sums = (depth as f64).log2() + f64::from(2 * form.bits);
        // The rest is room for what shares of weights are rounded.
        assert!(of_sums + 1.02 < bits, "{depth}: {form:?}");
        assert!((LEAST_BITS..=MOST_BITS).contains(&form.bits), "{depth}: {form:?}");
        assert!((1u64 << (2 * form.coarse)) * depth <= 1 << 31, "{depth}: {form:?}");
        assert!(last.is_none_or(|last| last <= form.moduli), "{depth}");
        last = Some(form.moduli);
    }
}
