//! The shaders in the crate, and their pipelines.

use std::collections::HashMap;
use std::io::Read;
use std::sync::OnceLock;

use lzma_rust2::LzipReader;
use walla_device::DeviceError;

use crate::driver::{Context, Pipeline};

/// Written by `cargo xtask shaders`: names and SPIR-V in lzip, each with a 32-bit length before it.
static PACKED: &[u8] = include_bytes!("../shaders/shaders.bin");

static UNPACKED: OnceLock<HashMap<String, Vec<u32>>> = OnceLock::new();

/// Shaders by name; none in a damaged build.
fn all() -> &'static HashMap<String, Vec<u32>> {
    UNPACKED.get_or_init(|| {
        let mut archive = Vec::new();
        let read = LzipReader::new(PACKED).read_to_end(&mut archive);
        let mut rest = if read.is_ok() { archive.as_slice() } else { &[] };
        let mut shaders = HashMap::new();
        while let (Some(name), Some(spirv)) = (part(&mut rest), part(&mut rest)) {
            let words = spirv.chunks_exact(4).map(bytemuck::pod_read_unaligned);
            shaders.insert(String::from_utf8_lossy(name).into_owned(), words.collect());
        }
        shaders
    })
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    Some(part)
}

/// Pipelines of a device, made when a program first needs them.
#[derive(Debug, Default)]
pub(crate) struct Shaders {
    pipelines: HashMap<String, Pipeline>,
}

impl Shaders {
    /// The pipeline of a shader: its file's name and its definitions.
    pub(crate) fn get(
        &mut self,
        context: &mut Context,
        name: &str,
    ) -> Result<Pipeline, DeviceError> {
        if let Some(pipeline) = self.pipelines.get(name) {
            return Ok(*pipeline);
        }
        let missing = || DeviceError::Invalid(format!("there is no shader {name:?}"));
        let spirv = all().get(name).ok_or_else(missing)?;
        let pipeline = context.pipeline(name, spirv)?;
        self.pipelines.insert(name.to_owned(), pipeline);
        Ok(pipeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shaders_are_spirv() {
        assert!(!all().is_empty());
        for (name, words) in all() {
            assert_eq!(words.first(), Some(&0x0723_0203), "{name}");
        }
    }
}
