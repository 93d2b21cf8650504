//! Compiled shaders in a file.

use std::fs;
use std::path::{Path, PathBuf};

use walla_device::{Backend, KvType, OpenOptions};
use walla_reference_test::vulkan_test;
use walla_types::TensorType;
use walla_vulkan::VulkanBackend;

use crate::model::Shape;
use crate::rig::{Piece, Rig};

/// Loads a model and returns the first logits.
fn load(folder: &Path) -> Vec<f32> {
    let backend = VulkanBackend::default().with_cache(folder.to_owned());
    let device = backend.open("vulkan:0", &OpenOptions::default()).unwrap();
    let mut rig = Rig::new(device, &Shape::llama(TensorType::Q8_0), KvType::F16, 1);
    rig.step(&[Piece::new(0, 0, &[1, 2, 3])], 0).logits.remove(0)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[vulkan_test]
fn compiled_shaders_are_kept_and_a_damaged_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let logits = load(&cache);
    let kept = files(&cache);
    let [file] = kept.as_slice() else { panic!("{kept:?}") };
    let contents = fs::read(file).unwrap();
    assert!(contents.len() >= 44, "a head, and the header of the driver's data");
    // A second load reads it: it has nothing to add.
    let written = fs::metadata(file).unwrap().modified().unwrap();
    assert_eq!(load(&cache), logits);
    assert_eq!(fs::metadata(file).unwrap().modified().unwrap(), written);
    // A damaged file is not read, so the next load writes it again.
    let mut damaged = contents.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(file, &damaged).unwrap();
    assert_eq!(load(&cache), logits);
    assert_ne!(fs::read(file).unwrap(), damaged);
    assert_eq!(files(&cache), kept);
    // A folder that cannot be made fails no load.
    assert_eq!(load(&file.join("no folder")), logits);
}
