//! The regime chain compiled inside this crate by vulkano-shaders, from the source of the committed modules.

pub mod f32 {
    vulkano_shaders::shader! {
        ty: "compute",
        path: "../../priv/shaders/src/nativev/regime.comp",
        include: ["../../priv/shaders/include"],
        vulkan_version: "1.2",
    }
}

pub mod f64 {
    vulkano_shaders::shader! {
        ty: "compute",
        path: "../../priv/shaders/src/nativev/regime.comp",
        include: ["../../priv/shaders/include"],
        define: [("F64", "1")],
        vulkan_version: "1.2",
    }
}
