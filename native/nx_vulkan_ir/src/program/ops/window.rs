//! Ops on windows of elements.

use smallvec::smallvec;

use super::kind::{Arity, Check, Class, Facts, Names, OpKind, family, named};
use super::rules::{f32, holds, multiplied, one, require, s32, same_dtype, same_shape};
use crate::program::attribute::Reduction;
use crate::program::function::Function;
use crate::program::window::Windows;
use crate::program::wire::{Attr, Attrs};
use crate::{Result, Type};

family! {
    /// Ops on windows of elements.
    Windowed { Window, WindowFold, WindowScatter }
}

/// Windows of two rows so far apart, for samples.
fn windows(dilation: u64) -> Windows {
    Windows {
        sizes: smallvec![2, 1],
        padding: smallvec![(0, 1), (1, -1)],
        strides: smallvec![2, 1],
        dilations: smallvec![dilation, 1],
    }
}

/// One operation for each element of each window.
fn flops_of(windows: &Windows, operands: &[&Type]) -> Option<u64> {
    let counts = windows.counts(&operands.first()?.shape).ok()?;
    multiplied(&[multiplied(&counts)?, multiplied(&windows.sizes)?])
}

/// a; sum, product, max or min of each window
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Window {
    /// By what.
    pub reduction: Reduction,
    /// Which elements.
    pub windows: Windows,
}

impl Window {
    fn names<Of: From<Window> + 'static>() -> Names<Of> {
        let all = Reduction::WINDOWED.iter().map(|&reduction| {
            let sample = move || (Window { reduction, windows: windows(2) }.into(), [f32(&[5, 3])], [f32(&[2, 3])]);
            named(reduction.window_name(), Window::read, sample)
        });
        all.collect()
    }

    fn read<Of: From<Window>>(name: &str, a: &Attrs<'_>) -> Result<Of> {
        let found = Reduction::WINDOWED.iter().find(|reduction| reduction.window_name() == name);
        let reduction = *found.ok_or_else(|| a.fail("name", "a reduction of windows"))?;
        Ok(Window { reduction, windows: Windows::from_wire(a)? }.into())
    }
}

impl OpKind for Window {
    fn facts(&self) -> Facts {
        Facts::alone(self.reduction.window_name(), Class::Window, 1)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        self.windows.attrs()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let (a, out, reduction) = (operands[0], one(outs)?, self.reduction);
        require(Reduction::WINDOWED.contains(&reduction), || format!("{} of windows", reduction.name()))?;
        require(!a.dtype.is_complex() || !reduction.is_ordered(), || format!("{} has no order", a.dtype))?;
        same_dtype(a, out)?;
        same_shape(&self.windows.counts(&a.shape)?, out)
    }

    fn flops(&self, operands: &[&Type], _: &[Type]) -> Option<u64> {
        flops_of(&self.windows, operands)
    }
}

/// a, initial value, captured scalars; a fold of each window, with the initial value in the padding
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WindowFold {
    /// Which elements.
    pub windows: Windows,
    /// Of an element and the accumulator, in row-major order.
    pub function: Box<Function>,
}

impl WindowFold {
    fn names<Of: From<WindowFold> + 'static>() -> Names<Of> {
        vec![named(
            "window_reduce",
            |_, a| {
                let function = Box::new(Function::from_wire(a)?);
                Ok(WindowFold { windows: Windows::from_wire(a)?, function }.into())
            },
            || {
                let fold = WindowFold { windows: windows(2), function: Box::new(Function::sample()) };
                (fold.into(), [f32(&[5, 3]), s32(&[]), s32(&[])], [f32(&[2, 3])])
            },
        )]
    }
}

impl OpKind for WindowFold {
    fn facts(&self) -> Facts {
        Facts { arity: Arity::AtLeast(2), ..Facts::alone("window_reduce", Class::Fold, 2) }
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        self.windows.attrs().into_iter().chain([self.function.attr()]).collect()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let out = one(outs)?;
        self.function.folds(operands, out)?;
        same_shape(&self.windows.counts(&operands[0].shape)?, out)
    }

    fn flops(&self, operands: &[&Type], _: &[Type]) -> Option<u64> {
        multiplied(&[flops_of(&self.windows, operands)?, self.function.steps.len() as u64])
    }
}

/// a, sources, initial value; adds each window's source to its largest (or smallest) element, the last of equal
/// ones
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WindowScatter {
    /// To the largest.
    pub max: bool,
    /// Which elements.
    pub windows: Windows,
}

impl WindowScatter {
    fn names<Of: From<WindowScatter> + 'static>() -> Names<Of> {
        let scattered = |max| {
            let op = WindowScatter { max, windows: windows(1) };
            (op.into(), [f32(&[5, 3]), f32(&[3, 3]), f32(&[])], [f32(&[5, 3])])
        };
        vec![
            named(
                "window_scatter_max",
                |_, a| Ok(WindowScatter { max: true, windows: Windows::from_wire(a)? }.into()),
                move || scattered(true),
            ),
            named(
                "window_scatter_min",
                |_, a| Ok(WindowScatter { max: false, windows: Windows::from_wire(a)? }.into()),
                move || scattered(false),
            ),
        ]
    }
}

impl OpKind for WindowScatter {
    fn facts(&self) -> Facts {
        let name = if self.max { "window_scatter_max" } else { "window_scatter_min" };
        Facts::alone(name, Class::Window, 3)
    }

    fn attrs(&self) -> Vec<(String, Attr)> {
        self.windows.attrs()
    }

    fn check(&self, operands: &[&Type], outs: &[Type]) -> Check {
        let &[a, source, initial] = operands else { return Err("needs 3 operands".to_string()) };
        let out = one(outs)?;
        holds(&[source, initial], out)?;
        require(!a.dtype.is_complex() && !out.dtype.is_complex(), || "complex numbers have no order".to_string())?;
        require(self.windows.dilations.iter().all(|&step| step == 1), || "dilated windows".to_string())?;
        require(initial.elements() == 1, || format!("an initial value of {:?}", initial.shape))?;
        same_shape(&self.windows.counts(&a.shape)?, source)?;
        same_shape(&a.shape, out)
    }

    fn flops(&self, operands: &[&Type], _: &[Type]) -> Option<u64> {
        flops_of(&self.windows, operands)
    }
}
