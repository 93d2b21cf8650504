//! Kernel images from files.

use std::io::Write;

use lzma_rust2::{LzipOptions, LzipWriter};
use walla_cuda::CudaBackend;
use walla_device::{Backend, Device, KvType, OpenOptions};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::Shape;
use crate::parity::tokens;
use crate::rig::{Piece, Rig};
use crate::{gpu, tested};

/// An image in the format of `xtask kernels`, with one kernel file.
fn image(target: &str, kind: &str, interface: &str, code: &[u8]) -> Vec<u8> {
    let manifest = format!("target {target}\nkind {kind}\ninterface {interface}\n");
    let mut packed = LzipWriter::new(Vec::new(), LzipOptions::with_preset(1));
    for part in [b"manifest", manifest.as_bytes(), b"embed", code] {
        packed.write_all(&(part.len() as u32).to_le_bytes()).unwrap();
        packed.write_all(part).unwrap();
    }
    packed.finish().unwrap()
}

/// The interface of the crate's images, from their manifest.
fn interface() -> &'static str {
    let manifest = include_str!("../../images/manifest.txt");
    manifest.lines().find_map(|line| line.strip_prefix("interface ")).unwrap()
}

/// A token sampled from a small model.
fn token(device: Box<dyn Device>) -> u32 {
    let shape = Shape::llama(TensorType::Q8_0);
    let mut rig = Rig::new(device, &shape, KvType::F16, 1);
    rig.step(&[Piece::new(0, 0, &tokens(shape.vocab, 4, 3))], 0).rows[0].token
}

#[gpu_test]
fn an_image_that_the_driver_refuses_is_skipped_and_named() {
    let device = gpu();
    let facts = device.info().gpu.clone().unwrap();
    let expected = token(device);
    let (major, minor) = facts.compute_capability;
    let chip = format!("sm_{major}{minor}a");
    let folder = std::env::temp_dir().join(format!("walla-gpu-images-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // Scores equal to the crate's image, so it is tried before it: an empty ELF file, which is
    // valid but contains no machine code.
    let mut elf = vec![0_u8; 64];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    std::fs::write(folder.join("bad.bin"), image(&chip, "cubin", interface(), &elf)).unwrap();
    std::fs::write(folder.join("old.bin"), image(&chip, "cubin", "0.0", &elf)).unwrap();
    let backend = CudaBackend::default().with_images(std::slice::from_ref(&folder));
    let listed =
        backend.devices().unwrap().into_iter().find(|listed| listed.name == tested()).unwrap();
    let listed = listed.gpu.unwrap();
    assert!(listed.kernel_image.contains("bad.bin"), "{}", listed.kernel_image);
    assert!(listed.kernel_images_refused.iter().any(|line| line.contains("old.bin")));

    let device = backend.open(&tested(), &OpenOptions::default()).unwrap();
    let opened = device.info().gpu.clone().unwrap();
    assert_eq!(opened.kernel_image, facts.kernel_image, "the crate's own");
    let named = |what: &str| opened.kernel_images_refused.iter().any(|line| line.contains(what));
    assert!(named("bad.bin") && named("old.bin"), "{:?}", opened.kernel_images_refused);
    opened.kernel_images_refused.iter().for_each(|line| println!("refused: {line}"));
    assert_eq!(token(device), expected);
    std::fs::remove_dir_all(&folder).unwrap();
}
