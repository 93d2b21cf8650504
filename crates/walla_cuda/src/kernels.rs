//! Kernels by name, compiled by the driver when a program first wants them.

use std::collections::BTreeMap;
use std::ffi::CString;

use walla_device::DeviceError;

use crate::driver::{Context, Function, Module};
use crate::images::Images;

/// Modules and functions that are loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    images: Images,
    modules: BTreeMap<String, Module>,
    functions: BTreeMap<String, Function>,
}

impl Kernels {
    pub(crate) fn new(images: Images) -> Self {
        Self { images, modules: BTreeMap::new(), functions: BTreeMap::new() }
    }

    /// The kernel `name` of `kernels/<file>.cu`, allowed `shared_bytes` of dynamic shared memory. Compiles the file on first use:
    /// a matter of loading, not of play.
    pub(crate) fn get(
        &mut self,
        context: &Context,
        file: &str,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Function, DeviceError> {
        if let Some(function) = self.functions.get(name) {
            return Ok(*function);
        }
        let missing = || DeviceError::Invalid(format!("no kernel {file}/{name} in the images"));
        let module = match self.modules.get(file) {
            Some(module) => *module,
            None => {
                let module = context.load_module(self.images.text(file).ok_or_else(missing)?)?;
                self.modules.insert(file.to_owned(), module);
                module
            }
        };
        let symbol = CString::new(name).map_err(|_| missing())?;
        let function = context.function(module, &symbol, shared_bytes)?;
        self.functions.insert(name.to_owned(), function);
        Ok(function)
    }
}
