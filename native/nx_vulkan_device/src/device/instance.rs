//! The Vulkan loader and instance, shared by every engine of the process, and the validation layer's messages.

use std::sync::{Arc, Mutex, PoisonError};

use nx_vulkan_ir::{Error, Result};
use vulkano::instance::debug::{
    DebugUtilsMessageSeverity, DebugUtilsMessageType, DebugUtilsMessenger, DebugUtilsMessengerCallback,
    DebugUtilsMessengerCreateInfo, ValidationFeatureEnable,
};
use vulkano::instance::{Instance, InstanceCreateFlags, InstanceCreateInfo};
use vulkano::{Version, VulkanLibrary};

use super::no_device;

const VALIDATION_LAYER: &str = "VK_LAYER_KHRONOS_validation";

/// Whether the Khronos validation layer watches every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validation {
    /// The layer is not loaded.
    Off,
    /// On where the layer is installed.
    On,
    /// Opening a device fails where the layer is missing.
    Required,
}

impl Validation {
    /// `NX_VULKAN_VALIDATION`: unset, empty or `0` is off, `required` is required, anything else is on.
    pub fn from_env() -> Validation {
        match std::env::var("NX_VULKAN_VALIDATION").as_deref() {
            Err(_) | Ok("" | "0") => Validation::Off,
            Ok("required") => Validation::Required,
            Ok(_) => Validation::On,
        }
    }
}

/// Messages of the validation layer, errors and warnings, in the order they came. Shared by the engines of one process.
#[derive(Debug, Default)]
pub struct ValidationLog(Mutex<Vec<String>>);

impl ValidationLog {
    /// What was said so far.
    pub fn messages(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, message: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }
}

/// What is to be known of the Vulkan loader, whether or not there are devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loader {
    /// Its version, or why there is none.
    pub version: std::result::Result<String, String>,
    /// The version of the validation layer, where it is installed.
    pub validation_layer: Option<String>,
}

/// The Vulkan loader of this machine.
pub fn loader() -> Loader {
    let library = match VulkanLibrary::new() {
        Ok(library) => library,
        Err(e) => return Loader { version: Err(describe(&e)), validation_layer: None },
    };
    let mut layers = library.layer_properties().into_iter().flatten();
    let validation_layer = layers.find(|layer| layer.name() == VALIDATION_LAYER);
    Loader {
        version: Ok(library.api_version().to_string()),
        validation_layer: validation_layer.map(|layer| layer.vulkan_version().to_string()),
    }
}

#[derive(Debug)]
pub(crate) struct VulkanInstance {
    pub instance: Arc<Instance>,
    /// `None` when validation is off or its layer is not installed.
    pub log: Option<Arc<ValidationLog>>,
    _messenger: Option<DebugUtilsMessenger>,
}

impl VulkanInstance {
    /// The instance of this process, created on first use and kept until the process ends, as drivers keep threads and
    /// exit handlers.
    pub fn shared(validation: Validation) -> Result<Arc<VulkanInstance>> {
        static PLAIN: Mutex<Option<Arc<VulkanInstance>>> = Mutex::new(None);
        static VALIDATED: Mutex<Option<Arc<VulkanInstance>>> = Mutex::new(None);
        let cell = match validation {
            Validation::Off => &PLAIN,
            Validation::On | Validation::Required => &VALIDATED,
        };
        let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
        let instance = match &*cell {
            Some(instance) => Arc::clone(instance),
            None => Arc::clone(cell.insert(Arc::new(Self::create(validation)?))),
        };
        if validation == Validation::Required && instance.log.is_none() {
            return Err(no_device(format!("validation is required but {VALIDATION_LAYER} is not installed")));
        }
        Ok(instance)
    }

    fn create(validation: Validation) -> Result<VulkanInstance> {
        let library = VulkanLibrary::new().map_err(|e| {
            let why = describe(&e);
            no_device(format!(
                "the Vulkan loader could not be loaded ({why}); `mix nx_vulkan.doctor` says what to install"
            ))
        })?;
        if library.api_version() < Version::V1_2 {
            return Err(no_device(format!("the Vulkan loader is {}, 1.2 or later is needed", library.api_version())));
        }
        let validate = validation != Validation::Off
            && library
                .layer_properties()
                .map_err(|e| no_device(e.to_string()))?
                .any(|layer| layer.name() == VALIDATION_LAYER);
        if validation != Validation::Off && !validate {
            eprintln!("nx_vulkan: {VALIDATION_LAYER} is not installed: running without it");
        }

        let mut info = InstanceCreateInfo {
            flags: InstanceCreateFlags::ENUMERATE_PORTABILITY,
            application_name: Some("nx_vulkan".into()),
            engine_name: Some("nx_vulkan_engine".into()),
            ..Default::default()
        };
        if validate {
            let of_layer =
                library.supported_layer_extensions(VALIDATION_LAYER).map_err(|e| no_device(e.to_string()))?;
            info.enabled_layers = vec![VALIDATION_LAYER.into()];
            if of_layer.ext_validation_features {
                // Finds missing barriers between copies, fills and descriptors; buffer addresses it can't follow.
                info.enabled_extensions.ext_validation_features = true;
                info.enabled_validation_features = vec![ValidationFeatureEnable::SynchronizationValidation];
            }
            info.enabled_extensions.ext_debug_utils = true;
        }
        let instance = Instance::new(library, info).map_err(|e| {
            no_device(format!(
                "the Vulkan instance could not be created ({}), as where no driver is installed; \
                 `mix nx_vulkan.doctor` says what there is",
                describe(&e)
            ))
        })?;
        if !validate {
            return Ok(VulkanInstance { instance, log: None, _messenger: None });
        }
        let log = Arc::new(ValidationLog::default());
        let messenger = messenger(&instance, Arc::clone(&log))?;
        Ok(VulkanInstance { instance, log: Some(log), _messenger: Some(messenger) })
    }
}

fn messenger(instance: &Arc<Instance>, log: Arc<ValidationLog>) -> Result<DebugUtilsMessenger> {
    // SAFETY: the callback stores a string and makes no Vulkan call.
    let callback = unsafe {
        DebugUtilsMessengerCallback::new(move |severity, _, data| {
            let id = data.message_id_name.unwrap_or("-");
            log.push(format!("{severity:?} {id}: {}", data.message));
        })
    };
    let info = DebugUtilsMessengerCreateInfo {
        message_severity: DebugUtilsMessageSeverity::ERROR | DebugUtilsMessageSeverity::WARNING,
        message_type: DebugUtilsMessageType::VALIDATION,
        ..DebugUtilsMessengerCreateInfo::user_callback(callback)
    };
    DebugUtilsMessenger::new(Arc::clone(instance), info)
        .map_err(|e| Error::Vulkan { call: "vkCreateDebugUtilsMessengerEXT", cause: describe(&e) })
}

/// The message of an error and of everything below it: vulkano's own `Display` leaves the cause out.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
