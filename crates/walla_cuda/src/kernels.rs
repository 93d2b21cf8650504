//! Kernels by name, loaded when a program first needs them.

use std::collections::BTreeMap;
use std::ffi::CString;

use walla_device::DeviceError;

use crate::driver::{Context, Function, Module};
use crate::images::{Archive, Image};

/// Loaded modules and functions.
#[derive(Debug)]
pub(crate) struct Kernels {
    archive: Archive,
    modules: BTreeMap<String, Module>,
    functions: BTreeMap<String, Function>,
}

impl Kernels {
    /// Opens the first of the ranked images that the driver accepts. A driver older than the
    /// compiler refuses its machine code, and PTX of a later version. Also returns one line per
    /// refused image, with the reason.
    ///
    /// # Errors
    /// [`DeviceError::Lost`], or the reasons why every image was refused.
    pub(crate) fn open(
        context: &Context,
        ranked: &[&Image],
    ) -> Result<(Self, Vec<String>), DeviceError> {
        let mut refused = Vec::new();
        for image in ranked {
            match Self::try_open(context, image) {
                Ok(kernels) => return Ok((kernels, refused)),
                Err(lost) if lost.is_lost() => return Err(lost),
                Err(error) => refused.push(format!("{image}: {error}")),
            }
        }
        Err(DeviceError::Failed { call: "loading kernels", reason: refused.join("; ") })
    }

    /// Unpacks an image and loads one of its files, so that a refusal is found before anything
    /// depends on the image.
    fn try_open(context: &Context, image: &Image) -> Result<Self, DeviceError> {
        let failed = |reason| DeviceError::Failed { call: "unpacking kernels", reason };
        let archive = image.unpack().map_err(failed)?;
        let mut kernels = Self { archive, modules: BTreeMap::new(), functions: BTreeMap::new() };
        // All files of an image have one version, which the driver accepts or refuses.
        kernels.module(context, "embed")?;
        Ok(kernels)
    }

    /// The target of the image in use, for example `sm_90a`.
    pub(crate) fn target(&self) -> &str {
        &self.archive.target.name
    }

    /// Whether the image in use has kernel files of a family.
    pub(crate) fn has_family(&self, family: &str) -> bool {
        self.archive.has_family(family)
    }

    /// The module of `kernels/FOLDER/NAME.cu` (`file` is NAME), if the image in use has it. Loads
    /// it on first use.
    fn module(&mut self, context: &Context, file: &str) -> Result<Option<Module>, DeviceError> {
        if let Some(module) = self.modules.get(file) {
            return Ok(Some(*module));
        }
        let Some(code) = self.archive.codes.get(file) else { return Ok(None) };
        let module = context.load_module(code)?;
        self.modules.insert(file.to_owned(), module);
        Ok(Some(module))
    }

    /// The kernel `name` of the file `kernels/FOLDER/NAME.cu` (`file` is NAME), allowed
    /// `shared_bytes` of dynamic shared memory, or `None` if the image in use lacks it: files may
    /// be compiled for some targets only. Loads the file on first use, so call it at load time, not
    /// during a step.
    pub(crate) fn find(
        &mut self,
        context: &Context,
        file: &str,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Option<Function>, DeviceError> {
        if let Some(function) = self.functions.get(name) {
            return Ok(Some(*function));
        }
        let Some(module) = self.module(context, file)? else { return Ok(None) };
        let Ok(symbol) = CString::new(name) else { return Ok(None) };
        let function = context.function(module, &symbol, shared_bytes)?;
        if let Some(function) = function {
            self.functions.insert(name.to_owned(), function);
        }
        Ok(function)
    }

    /// The name of a loaded kernel.
    #[cfg(feature = "cupti")]
    pub(crate) fn name_of(&self, function: Function) -> Option<&str> {
        let (name, _) = self.functions.iter().find(|(_, found)| **found == function)?;
        Some(name)
    }

    /// The kernel `name` of the file `kernels/FOLDER/NAME.cu` (`file` is NAME), which every image
    /// has.
    pub(crate) fn get(
        &mut self,
        context: &Context,
        file: &str,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Function, DeviceError> {
        self.find(context, file, name, shared_bytes)?
            .ok_or_else(|| DeviceError::Invalid(format!("no kernel {file}/{name} in the images")))
    }
}
