//! The UCI optical digits (`examples/data/README.md`).

use std::error::Error;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

pub const PIXELS: usize = 64;

/// Images of 8x8 pixels from 0 to 16, and the digit that each one shows.
pub struct Images {
    pixels: Vec<[u8; PIXELS]>,
    digits: Vec<u8>,
}

impl Images {
    pub fn read() -> Result<Images, Box<dyn Error>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/digits.csv.gz");
        let file = std::fs::File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut text = String::new();
        GzDecoder::new(file).read_to_string(&mut text)?;
        let mut images = Images { pixels: vec![], digits: vec![] };
        for line in text.lines() {
            let numbers = line.split(',').map(str::parse).collect::<Result<Vec<u8>, _>>()?;
            let (pixels, digit) = numbers.split_first_chunk().ok_or("a line with fewer than 64 pixels")?;
            images.pixels.push(*pixels);
            images.digits.push(*digit.first().ok_or("a line without a digit")?);
        }
        Ok(images)
    }

    pub fn len(&self) -> usize {
        self.digits.len()
    }

    /// The pixels of some of the images, one image after the other, and their digits.
    pub fn take(&self, which: &[usize]) -> (Vec<u8>, Vec<u8>) {
        (which.iter().flat_map(|&i| self.pixels[i]).collect(), which.iter().map(|&i| self.digits[i]).collect())
    }
}

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fisher and Yates; the bias of the remainder is below 2^-53 for lists like ours.
    pub fn shuffle(&mut self, list: &mut [usize]) {
        for i in (1..list.len()).rev() {
            list.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}
