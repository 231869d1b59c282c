//! A second engine beside the one under test, which has to give the same bits: `NX_VULKAN_BESIDE=lowered` is the same
//! device without the types that a device may lack, anything else is another device, named as in `NX_VULKAN_DEVICE`.

use std::sync::{Arc, OnceLock};

use nx_vulkan_engine::reference::Array;
use nx_vulkan_engine::{Engine, Error, Result, Tensor};
use nx_vulkan_spirv::lower::Lacks;

use crate::compare::{Bound, agrees};

/// The second engine, where one is asked for.
pub fn engine() -> Option<&'static Arc<Engine>> {
    static BESIDE: OnceLock<Option<Arc<Engine>>> = OnceLock::new();
    let open = || {
        let named = std::env::var("NX_VULKAN_BESIDE").ok()?;
        let mut options = crate::common::options();
        match named.as_str() {
            "lowered" => options.lower = Lacks::ALL,
            _ => options.selector = Some(named),
        }
        let engine = Engine::open_with(&options).unwrap();
        println!("beside: {}, lacks {:?}", engine.info().name, engine.caps().lacks());
        Some(engine)
    };
    BESIDE.get_or_init(open).as_ref()
}

/// An error where results differ in a bit, other than by which NaN they have.
pub fn check(what: &str, [engine, beside]: [&Engine; 2], results: &[Tensor], others: &[Tensor]) -> Result<()> {
    for (k, (result, other)) in results.iter().zip(others).enumerate() {
        let ty = result.view().ty();
        let [a, b] = [(engine, result), (beside, other)]
            .map(|(engine, t)| t.to_nx_bytes(engine, None).and_then(|bytes| Array::from_nx_bytes(&ty, &bytes)));
        let (a, b) = (a?, b?);
        let differs = |&i: &usize| !agrees(a.values[i], b.values[i], ty.dtype, Bound::Exact);
        let places: Vec<usize> = (0..a.values.len()).filter(differs).collect();
        if let Some(&i) = places.first() {
            let [expected, got] = [&a, &b].map(|array| format!("{:?}", array.values[i]));
            let got = format!("{got} at {i} of result {k} of {what}, {ty}; {} differ", places.len());
            return Err(Error::InvalidArgument { what: "bits of the engine beside", expected, got });
        }
    }
    Ok(())
}
