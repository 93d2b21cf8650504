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
    /// The pipeline of a shader, with values for its first constants. Its name is its file's with
    /// its definitions.
    pub(crate) fn get(
        &mut self,
        context: &mut Context,
        name: &str,
        constants: &[u32],
    ) -> Result<Pipeline, DeviceError> {
        let key = format!("{name} {constants:?}");
        if let Some(pipeline) = self.pipelines.get(&key) {
            return Ok(*pipeline);
        }
        let missing = || DeviceError::Invalid(format!("there is no shader {name:?}"));
        let spirv = all().get(name).ok_or_else(missing)?;
        let pipeline = context.pipeline(name, spirv, constants)?;
        self.pipelines.insert(key, pipeline);
        Ok(pipeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of an instruction behind its first, by its code.
    fn instructions(spirv: &[u32]) -> impl Iterator<Item = (u32, &[u32])> {
        let mut rest = &spirv[5..];
        std::iter::from_fn(move || {
            let first = *rest.first()?;
            let (instruction, next) = rest.split_at((first >> 16) as usize);
            rest = next;
            Some((first & 0xffff, &instruction[1..]))
        })
    }

    /// Bytes of the variables in shared memory.
    fn shared_bytes(spirv: &[u32]) -> u32 {
        const SHARED: u32 = 4;
        // Bytes of types, values of constants, and the type behind a pointer to shared memory.
        let mut bytes: HashMap<u32, u32> = HashMap::new();
        let mut values: HashMap<u32, u32> = HashMap::new();
        let mut pointees: HashMap<u32, u32> = HashMap::new();
        let mut sum = 0;
        for (code, words) in instructions(spirv) {
            // Integers and floats, vectors, arrays, structs; those in shared memory have a size.
            let size = match (code, words) {
                (21 | 22, [_, width, ..]) => Some(width / 8),
                (23, [_, element, count]) => bytes.get(element).map(|its| its * count),
                (28, [_, element, count]) => {
                    bytes.get(element).zip(values.get(count)).map(|(its, count)| its * count)
                }
                (30, [_, members @ ..]) => members.iter().map(|its| bytes.get(its)).sum(),
                _ => None,
            };
            bytes.extend(size.map(|size| (words[0], size)));
            match (code, words) {
                (32, [id, SHARED, pointee]) => pointees.extend([(*id, *pointee)]),
                (43, [_, id, value, ..]) => values.extend([(*id, *value)]),
                (59, [pointer, _, SHARED, ..]) => sum += bytes[&pointees[pointer]],
                _ => {}
            }
        }
        sum
    }

    #[test]
    fn shaders_need_the_features_of_their_tier_only() {
        // Vulkan 1.2 has SPIR-V 1.5.
        const MAGIC_AND_VERSION: [u32; 2] = [0x0723_0203, 0x1_0500];
        // Shaders, 64-bit integers, addresses, subgroups and their shuffles.
        const ALL: [u32; 5] = [1, 11, 5347, 61, 65];
        const OF_DOT: [u32; 2] = [6018, 6019];
        // 8-bit integers, the memory model and its scope of a device, cooperative matrices.
        const OF_MATRICES: [u32; 4] = [39, 5345, 5346, 6022];
        assert!(!all().is_empty());
        for (name, spirv) in all() {
            assert_eq!(spirv[..2], MAGIC_AND_VERSION, "{name}");
            let is_of_matrices =
                name.starts_with("product_matrix ") || name.starts_with("product_tiles ");
            let (more, limit): (&[u32], u32) = match () {
                () if is_of_matrices => (&OF_MATRICES, 48 << 10),
                () if name.contains("DOT=1") => (&OF_DOT, 32 << 10),
                () => (&[], 32 << 10),
            };
            for (code, words) in instructions(spirv) {
                let is_known = code != 17 || ALL.contains(&words[0]) || more.contains(&words[0]);
                assert!(is_known, "{name}: capability {}", words[0]);
            }
            let bytes = shared_bytes(spirv);
            assert!(bytes <= limit, "{name}: {bytes} bytes of shared memory");
        }
        let attention = &all()["attention TYPE=KV_F16 HEADS=8"];
        assert!(shared_bytes(attention) > 20 << 10);
    }
}
