//! Matrices of numbers of few bits, each multiplied by a scale and moved by an offset that neighbours share, as weights
//! are: matrix units take the numbers, and sums of their products are scaled in place of elements.

use nx_vulkan_ir::program::ranges::integers;
use nx_vulkan_ir::program::step::{Ref, Step};
use nx_vulkan_ir::program::{Binary, Elementwise, Unary};
use nx_vulkan_ir::{CType, DType};
use nx_vulkan_spirv::steps::dtype_of;
use smallvec::SmallVec;

use super::derived::{DerivedSpec, Spread};

/// Contracted elements that share a scale and an offset, at least.
pub(super) const SHARED_BY: u64 = 32;

/// Numbers of which 16 bits hold all: an element of the matrix is its number times `scale` plus `offset`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinearSpec {
    /// The numbers, eight neighbours at once.
    pub numbers: DerivedSpec,
    /// What the numbers are.
    pub kind: Numbers,
    /// In f32, of any of the elements that share it; 1 where there is none.
    pub scale: Option<DerivedSpec>,
    /// In f32, likewise; 0 where there is none.
    pub offset: Option<DerivedSpec>,
}

/// How numbers become those of 16 bits that units multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// By a mask and a shift of a word, the same one for neighbour `j` and `j + 4`, where that one's shift is 16 more.
    Fields { operand: u8, mask: u32, shifts: [u8; 4] },
    /// By bits of bytes that lie near each other, or are the same for all: four of them in a word at once.
    Bytes,
    /// Whole numbers from 0 on which, in the last bits of a number of 16 bits, are a power of two less than that.
    Small,
    /// As floats, of which the first 16 bits, or a conversion, are exact.
    Floats,
}

impl Numbers {
    /// What is added to numbers on the way, times the type's own power of two.
    pub(super) fn is_moved(self) -> bool {
        match self {
            Numbers::Fields { .. } | Numbers::Bytes | Numbers::Small => true,
            Numbers::Floats => false,
        }
    }
}

/// The number to which bits are added that integers below it are, as a number of a narrow type: its bits of 16, and
/// itself.
pub(super) fn moved_by(dtype: DType) -> (u32, f32) {
    if dtype == DType::Bf16 { (0x4300, 128.0) } else { (0x6400, 1024.0) }
}

/// A value as a number times a scale plus an offset.
struct Form {
    number: Ref,
    scale: Option<Ref>,
    offset: Option<Ref>,
}

impl LinearSpec {
    /// The elements that a spec computes, for a product by vectors of a narrow type; `numbers` takes eight neighbours at
    /// once, and `shared` says how as many lie as share a scale. `None` where elements are not so.
    pub(super) fn of(
        whole: &DerivedSpec,
        numbers: &DerivedSpec,
        shared: &DerivedSpec,
        dtype: DType,
    ) -> Option<LinearSpec> {
        if shared.together() != SHARED_BY as u32 || numbers.together() != 8 {
            return None;
        }
        let inputs: SmallVec<[DType; 4]> = whole.inputs.iter().map(|port| dtype_of(port.element)).collect();
        let mut finder = Finder { inputs, shared: shared.clone(), dtype };
        let form = finder.form(whole.result)?;
        let part = |of: &DerivedSpec, result: Ref| {
            pruned(&DerivedSpec { steps: finder.shared.steps.clone(), result, ..of.clone() })
        };
        let numbers = part(numbers, form.number);
        let [range] = integers(&[numbers.result], &numbers.steps, &finder.inputs)[..] else { return None };
        let (_, power) = moved_by(dtype);
        let is_small = range.is_some_and(|(least, most)| least >= 0 && most < power as i128);
        let kind = match fields(&numbers, &finder.inputs, power) {
            Some(fields) => fields,
            None if is_small && are_bytes(&numbers, &finder.inputs, numbers.result) => Numbers::Bytes,
            None if is_small => Numbers::Small,
            None => Numbers::Floats,
        };
        let one = |result: Ref| {
            let single = DerivedSpec {
                spans: SmallVec::new(),
                lies: whole.lies.iter().map(|_| SmallVec::new()).collect(),
                ..whole.clone()
            };
            part(&single, result)
        };
        Some(LinearSpec { kind, scale: form.scale.map(one), offset: form.offset.map(one), numbers })
    }

    /// Whether the product by so many vectors is sooner done by units: few vectors leave them idle, so that it is what
    /// numbers take that counts, each loaded alone above all. 14336 x 4096 numbers by one and by four vectors take an
    /// H200 26 and 27 us as fields (31 and 47 element by element), 39 and 38 as bytes (54 and 80), 48 and 48 as near
    /// floats (47 and 62), 80 and 81 as bytes apart (47 and 59); by eight vectors, where elements are stored first,
    /// all take less.
    pub(super) fn pays(&self, vectors: u64) -> bool {
        let is_apart = |k: u8, lies: &[Spread]| self.numbers.reads(Ref::Input(k)) && lies.contains(&Spread::Apart);
        match self.kind {
            _ if vectors > FEW => true,
            Numbers::Fields { .. } | Numbers::Bytes => true,
            Numbers::Small | Numbers::Floats => {
                vectors > 1 && !(0..).zip(&self.numbers.lies).any(|(k, lies)| is_apart(k, lies))
            }
        }
    }
}

/// Vectors up to which elements are computed by other kernels, too.
const FEW: u64 = 4;

/// Finds the form of values among steps, to which it adds those of scales and offsets.
struct Finder {
    inputs: SmallVec<[DType; 4]>,
    /// All steps, and how many elements lie that share a scale.
    shared: DerivedSpec,
    /// The type of the vectors.
    dtype: DType,
}

impl Finder {
    fn form(&mut self, value: Ref) -> Option<Form> {
        let Ref::Result(k) = value else { return None };
        let step = self.shared.steps.get(usize::from(k))?.clone();
        match (step.op, step.args.as_slice()) {
            (Elementwise::AsType, &[number]) => {
                let is_float = step.out == DType::F32 || step.out == self.dtype;
                (is_float && self.is_exact(number)).then_some(Form { number, scale: None, offset: None })
            }
            _ if step.out != DType::F32 => None,
            (Elementwise::Unary(Unary::Negate), &[a]) => {
                let form = self.form(a)?;
                self.negated(form)
            }
            (Elementwise::Binary(Binary::Multiply), &[a, b]) => {
                let (factor, other) = self.shared_first(a, b)?;
                let form = self.form(other)?;
                let scale = match form.scale {
                    Some(scale) => self.push(Binary::Multiply, [scale, factor])?,
                    None => factor,
                };
                let offset = match form.offset {
                    Some(offset) => Some(self.push(Binary::Multiply, [offset, factor])?),
                    None => None,
                };
                Some(Form { scale: Some(scale), offset, ..form })
            }
            (Elementwise::Binary(Binary::Add), &[a, b]) => {
                let (term, other) = self.shared_first(a, b)?;
                let form = self.form(other)?;
                self.moved(form, term)
            }
            (Elementwise::Binary(Binary::Subtract), &[a, b]) if self.is_shared(b) => {
                let form = self.form(a)?;
                let term = self.negative(b)?;
                self.moved(form, term)
            }
            (Elementwise::Binary(Binary::Subtract), &[a, b]) if self.is_shared(a) => {
                let form = self.form(b)?;
                let form = self.negated(form)?;
                self.moved(form, a)
            }
            _ => None,
        }
    }

    /// Both, the one first that neighbours share.
    fn shared_first(&self, a: Ref, b: Ref) -> Option<(Ref, Ref)> {
        match [self.is_shared(a), self.is_shared(b)] {
            [true, _] => Some((a, b)),
            [_, true] => Some((b, a)),
            _ => None,
        }
    }

    fn moved(&mut self, form: Form, term: Ref) -> Option<Form> {
        let offset = match form.offset {
            Some(offset) => self.push(Binary::Add, [offset, term])?,
            None => term,
        };
        Some(Form { offset: Some(offset), ..form })
    }

    fn negated(&mut self, form: Form) -> Option<Form> {
        let scale = self.negative(form.scale.unwrap_or(Ref::Constant(DType::F32, 1f32.to_bits().into())))?;
        let offset = match form.offset {
            Some(offset) => Some(self.negative(offset)?),
            None => None,
        };
        Some(Form { scale: Some(scale), offset, ..form })
    }

    fn negative(&mut self, value: Ref) -> Option<Ref> {
        if let Ref::Constant(DType::F32, bits) = value {
            return Some(Ref::Constant(DType::F32, (-f32::from_bits(bits as u32)).to_bits().into()));
        }
        self.push_step(Step {
            op: Elementwise::Unary(Unary::Negate),
            args: [value].into_iter().collect(),
            out: DType::F32,
        })
    }

    fn push(&mut self, op: Binary, args: [Ref; 2]) -> Option<Ref> {
        self.push_step(Step { op: Elementwise::Binary(op), args: args.into_iter().collect(), out: DType::F32 })
    }

    fn push_step(&mut self, step: Step) -> Option<Ref> {
        let k = u16::try_from(self.shared.steps.len()).ok()?;
        self.shared.steps.push(step);
        Some(Ref::Result(k))
    }

    /// Whether a value is of f32, and the same for all elements that share a scale.
    fn is_shared(&self, value: Ref) -> bool {
        self.dtype_of(value) == Some(DType::F32) && is_same_for_all(&self.shared, value)
    }

    fn dtype_of(&self, value: Ref) -> Option<DType> {
        match value {
            Ref::Input(k) => self.inputs.get(usize::from(k)).copied(),
            Ref::Result(k) => self.shared.steps.get(usize::from(k)).map(|step| step.out),
            Ref::Constant(dtype, _) => Some(dtype),
            Ref::Coordinate(_) | Ref::Linear => Some(DType::U32),
        }
    }

    /// Whether the vectors' type holds all values that there may be, NaN and infinities too.
    fn is_exact(&self, value: Ref) -> bool {
        let Some(own) = self.dtype_of(value) else { return false };
        if !own.is_integer() {
            return own.is_within(self.dtype);
        }
        // Numbers of so many bits.
        let most: i128 = if self.dtype == DType::Bf16 { 1 << 8 } else { 1 << 11 };
        let range = integers(&[value], &self.shared.steps, &self.inputs);
        matches!(range[..], [Some((least, largest))] if -most <= least && largest <= most)
    }
}

/// The same with those steps alone that its result comes from.
fn pruned(spec: &DerivedSpec) -> DerivedSpec {
    let mut is_read = vec![false; spec.steps.len()];
    let mark = |is_read: &mut Vec<bool>, r: &Ref| {
        if let Ref::Result(k) = *r
            && let Some(read) = is_read.get_mut(usize::from(k))
        {
            *read = true;
        }
    };
    mark(&mut is_read, &spec.result);
    for (k, step) in spec.steps.iter().enumerate().rev() {
        if is_read[k] {
            step.args.iter().for_each(|arg| mark(&mut is_read, arg));
        }
    }
    let places: Vec<u16> = is_read
        .iter()
        .scan(0, |next, &read| {
            let place = *next;
            *next += u16::from(read);
            Some(place)
        })
        .collect();
    let moved = |r: &Ref| match *r {
        Ref::Result(k) => Ref::Result(places.get(usize::from(k)).copied().unwrap_or(k)),
        other => other,
    };
    let kept = spec.steps.iter().zip(&is_read).filter(|(_, read)| **read);
    let steps = kept.map(|(step, _)| Step { args: step.args.iter().map(moved).collect(), ..step.clone() }).collect();
    DerivedSpec { steps, result: moved(&spec.result), ..spec.clone() }
}

/// Numbers that are fields of words, below a power of two: eight neighbours in one word of 32 bits.
fn fields(numbers: &DerivedSpec, inputs: &[DType], power: f32) -> Option<Numbers> {
    let step = |r: Ref| if let Ref::Result(k) = r { numbers.steps.get(usize::from(k)) } else { None };
    let masked = step(numbers.result).filter(|step| step.op == Elementwise::Binary(Binary::BitwiseAnd))?;
    let (shifted, mask) = match *masked.args.as_slice() {
        [shifted, Ref::Constant(_, mask)] | [Ref::Constant(_, mask), shifted] => (shifted, mask),
        _ => return None,
    };
    let shifted = step(shifted).filter(|step| step.op == Elementwise::Binary(Binary::RightShift))?;
    let &[Ref::Input(operand), by] = shifted.args.as_slice() else { return None };
    let is_word =
        [inputs.get(usize::from(operand))?, &shifted.out, &masked.out].iter().all(|dtype| **dtype == DType::U32);
    let is_one = numbers.lies.get(usize::from(operand))?.iter().all(|along| *along == Spread::Same);
    if !is_word || !is_one || mask as f64 >= f64::from(power) {
        return None;
    }
    let shifts: SmallVec<[u32; 8]> =
        (0..8).map(|j| known(numbers, by, &numbers.places_of(j))).collect::<Option<_>>()?;
    let is_paired = (0..4).all(|j| shifts[j] + 16 == shifts[j + 4] && shifts[j] < 16);
    let shifts = [shifts[0], shifts[1], shifts[2], shifts[3]].map(|shift| shift as u8);
    is_paired.then_some(Numbers::Fields { operand, mask: mask as u32, shifts })
}

/// Whether a value is made of bits of bytes that are loaded four at once, by masks and by shifts that are the same for
/// all neighbours.
fn are_bytes(numbers: &DerivedSpec, inputs: &[DType], value: Ref) -> bool {
    let is_same = |value: Ref| is_same_for_all(numbers, value);
    match value {
        _ if is_same(value) => true,
        Ref::Input(k) => {
            let lies = numbers.lies.get(usize::from(k)).map(|lies| lies.as_slice());
            let near = matches!(lies, Some([Spread::Near(4 | 8)]) | Some([Spread::Near(4 | 8), ..]));
            near && inputs.get(usize::from(k)) == Some(&DType::U8)
        }
        Ref::Result(k) => {
            let Some(step) = numbers.steps.get(usize::from(k)).filter(|step| step.out == DType::U8) else {
                return false;
            };
            match (step.op, step.args.as_slice()) {
                (Elementwise::Binary(Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor), &[a, b]) => {
                    [a, b].iter().all(|&arg| are_bytes(numbers, inputs, arg))
                }
                (Elementwise::Binary(Binary::LeftShift | Binary::RightShift), &[a, by]) => {
                    are_bytes(numbers, inputs, a) && is_same(by)
                }
                _ => false,
            }
        }
        Ref::Constant(..) | Ref::Coordinate(_) | Ref::Linear => false,
    }
}

/// Whether a value is the same for all neighbours that are computed at once.
pub(super) fn is_same_for_all(spec: &DerivedSpec, value: Ref) -> bool {
    let axes: usize = spec.ranks.map(usize::from).iter().sum();
    match value {
        Ref::Constant(..) => true,
        Ref::Linear => false,
        Ref::Coordinate(axis) => usize::from(axis) + spec.spans.len() < axes,
        Ref::Input(k) => {
            spec.lies.get(usize::from(k)).is_some_and(|lies| lies.iter().all(|along| *along == Spread::Same))
        }
        Ref::Result(k) => {
            let step = spec.steps.get(usize::from(k));
            step.is_some_and(|step| step.args.iter().all(|&arg| is_same_for_all(spec, arg)))
        }
    }
}

/// What a value of a neighbour is, by its place along the spans, if nothing else decides it.
fn known(spec: &DerivedSpec, value: Ref, places: &[u32]) -> Option<u32> {
    match value {
        Ref::Constant(dtype, bits) if matches!(dtype.ctype(), CType::U32 | CType::I32) => u32::try_from(bits).ok(),
        Ref::Coordinate(axis) => {
            let ranks: usize = spec.ranks.map(usize::from).iter().sum();
            let from_last = ranks.checked_sub(1 + usize::from(axis))?;
            let span = spec.spans.get(from_last).filter(|span| span.is_whole)?;
            places.get(from_last).copied().filter(|&place| place < u32::from(span.count))
        }
        Ref::Result(k) => {
            let step = spec.steps.get(usize::from(k))?;
            let args = step.args.iter().map(|&arg| known(spec, arg, places)).collect::<Option<SmallVec<[u32; 3]>>>()?;
            let is_small = |x: &u32| *x <= 127;
            match (step.op, args.as_slice()) {
                (Elementwise::AsType, &[a]) if step.out.is_integer() => Some(a),
                (Elementwise::Binary(Binary::Multiply), &[a, b]) => a.checked_mul(b),
                (Elementwise::Binary(Binary::Add), &[a, b]) => a.checked_add(b),
                _ => None,
            }
            .filter(is_small)
        }
        Ref::Constant(..) | Ref::Input(_) | Ref::Linear => None,
    }
}
