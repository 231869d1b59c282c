//! Images whose windows reach beyond them, where zeros are: products on matrix units read them where they lie. Each row
//! knows which positions of its window lie in the image, and each eight elements along the contracted axis know theirs.

use nx_vulkan_ir::Result;
use nx_vulkan_spirv::access;
use nx_vulkan_spirv::generated::arg;
use nx_vulkan_spirv::link::{Code, Linker};
use nx_vulkan_spirv::params::{Param, ParamLayout};
use rspirv::spirv::{Op as SpirvOp, Word};
use smallvec::SmallVec;

/// Positions that a window has at most: a bit of a word for each.
pub const MAX_POSITIONS: u64 = 32;
/// Places of eight elements along the contracted axis, behind that of a row, which lie beside the number of a position
/// in a word.
pub const MAX_PLACES: u64 = 1 << 27;

/// Numbers of a launch before those of a border.
const NUMBERS: u8 = 20;

/// An axis along which windows lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WindowAxis {
    /// Positions of a window, and elements of the image from one to the next.
    pub positions: u32,
    pub dilation: u32,
    /// Elements from one window to the next.
    pub stride: u32,
}

/// The windows of such an image as an operand of a kernel: the free axes are images and then places of windows, the
/// contracted ones positions in a window and then channels.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BorderSpec {
    /// Whether it is the second operand.
    pub second: bool,
    pub axes: SmallVec<[WindowAxis; 3]>,
}

/// An axis of such an image.
#[derive(Debug, Clone, Copy)]
pub struct BorderAxis {
    pub windows: WindowAxis,
    /// Its elements, the zeros before them, and how far the former are apart.
    pub size: u64,
    pub before: u64,
    pub stride: u64,
}

/// The zeros around an image.
#[derive(Debug, Clone)]
pub struct Border {
    pub axes: SmallVec<[BorderAxis; 3]>,
}

impl Border {
    /// Blocks of eight elements from the first element of a window to the last one of so many channels.
    pub fn places(&self, channels: u64) -> u64 {
        let axes = self.axes.iter();
        axes.map(|axis| axis.stride.saturating_mul(axis.windows.span())).fold(channels, u64::saturating_add) / 8
    }

    /// By how many elements the first one of the first window would lie before the image.
    pub fn lead(&self) -> u64 {
        self.axes.iter().map(|axis| axis.before.saturating_mul(axis.stride)).fold(0, u64::saturating_add)
    }

    pub(super) fn spec(&self, second: bool) -> BorderSpec {
        BorderSpec { second, axes: self.axes.iter().map(|axis| axis.windows).collect() }
    }

    /// What kernels want to know: [`Border::lead`] in blocks of eight, and along each axis the zeros before the
    /// image, and where that ends.
    pub(super) fn numbers(&self) -> SmallVec<[u64; 8]> {
        let along = self.axes.iter().flat_map(|axis| [axis.before, axis.before + axis.size]);
        std::iter::once(self.lead() / 8).chain(along).collect()
    }
}

impl BorderSpec {
    /// Numbers of a launch: [`Border::numbers`].
    pub(super) fn numbers(&self) -> u8 {
        1 + 2 * self.axes.len() as u8
    }

    /// Defines what kernels ask about a border, of operands whose axes have such ranks.
    pub(super) fn define(
        &self,
        [a_ranks, b_ranks]: [[u8; 3]; 2],
        linker: &mut Linker<'_>,
        params: &mut ParamLayout,
    ) -> Result<()> {
        let rank = self.axes.len() as u8;
        // Axes of the kernel that are places of windows, and those that are positions in them.
        let (places, positions) = match self.second {
            false => (a_ranks[0], a_ranks[0] + a_ranks[1]),
            true => {
                let first = a_ranks.iter().sum::<u8>() + b_ranks[0];
                (first + b_ranks[1], first)
            }
        };
        linker.define("slot_inside", |code, args| {
            let coordinates = access::coordinates(code, params, arg(args, 0)?, places, 1 + rank)?;
            self.inside(code, params, &coordinates).map(Some)
        })?;
        linker.define("slot_position", |code, args| {
            let coordinates = access::coordinates(code, params, arg(args, 0)?, positions, rank + 1)?;
            let mut number = code.linker.const_u32(0);
            for (&coordinate, unit) in coordinates.iter().zip(self.units()) {
                let unit = code.linker.const_u32(unit);
                let term = code.u32_op(SpirvOp::IMul, coordinate, unit);
                number = code.u32_op(SpirvOp::IAdd, number, term);
            }
            Ok(Some(number))
        })
    }

    /// Positions of a window from one along an axis to the next, which are numbered in row-major order.
    fn units(&self) -> SmallVec<[u32; 3]> {
        (0..self.axes.len()).map(|k| self.axes[k + 1..].iter().map(|axis| axis.positions).product()).collect()
    }

    /// Bits of the positions in the image, of the window of an image at a place, whose coordinates these are.
    fn inside(&self, code: &mut Code<'_, '_>, params: &mut ParamLayout, coordinates: &[Word]) -> Result<Word> {
        let mut inside = code.linker.const_u32(1);
        let of_axes = self.axes.iter().zip(self.units()).zip(0u8..).zip(coordinates.iter().skip(1));
        for (((axis, unit), k), &place) in of_axes {
            let mut number = |n: u8| code.param(params.word(Param::Extra(NUMBERS + 1 + 2 * k + n)));
            let [begin, end] = [number(0)?, number(1)?];
            let stride = code.linker.const_u32(axis.stride);
            let first = code.u32_op(SpirvOp::IMul, place, stride);
            let [before, until] = [begin, end].map(|bound| axis.positions_before(code, bound, first));
            // Of the positions along an axis the first bit of as many as inner axes have.
            let (uint, unit_) = (code.linker.type_uint(32), code.linker.const_u32(unit));
            let [from, to] = [before, until].map(|positions| code.u32_op(SpirvOp::IMul, positions, unit_));
            let count = code.u32_op(SpirvOp::ISub, to, from);
            let [none, all] = [0, u32::MAX].map(|bits| code.linker.const_u32(bits));
            let range = code.ids(SpirvOp::BitFieldInsert, uint, &[none, all, from, count]);
            let first_bits = code.linker.const_u32((0..axis.positions).map(|n| 1 << (n * unit)).sum());
            let along = code.u32_op(SpirvOp::BitwiseAnd, range, first_bits);
            // Bits of inner axes stand between these: no bit is carried.
            inside = code.u32_op(SpirvOp::IMul, inside, along);
        }
        Ok(inside)
    }
}

impl WindowAxis {
    /// Elements of the image from the first position of a window to the last.
    fn span(&self) -> u64 {
        u64::from(self.positions.saturating_sub(1)) * u64::from(self.dilation)
    }

    /// Positions of a window that lie before a bound, where the window itself begins with element `first`.
    fn positions_before(&self, code: &mut Code<'_, '_>, bound: Word, first: Word) -> Word {
        let (uint, bool_type) = (code.linker.type_uint(32), code.linker.type_bool());
        let [zero, most] = [0, self.positions].map(|n| code.linker.const_u32(n));
        let mut room = code.u32_op(SpirvOp::ISub, bound, first);
        if self.dilation > 1 {
            let [step, last] = [self.dilation, self.dilation - 1].map(|n| code.linker.const_u32(n));
            let rounded = code.u32_op(SpirvOp::IAdd, room, last);
            room = code.u32_op(SpirvOp::UDiv, rounded, step);
        }
        let is_begun = code.ids(SpirvOp::ULessThan, bool_type, &[first, bound]);
        let room = code.ids(SpirvOp::Select, uint, &[is_begun, room, zero]);
        let is_less = code.ids(SpirvOp::ULessThan, bool_type, &[room, most]);
        code.ids(SpirvOp::Select, uint, &[is_less, room, most])
    }
}
