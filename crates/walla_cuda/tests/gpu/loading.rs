//! Weights that are read from their source in parts, by one thread and by several.

use walla_cuda::CudaBackend;
use walla_device::{Device, DeviceError, KvType, MatrixDesc, MatrixUse};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::in_file::InFile;
use crate::model::{Random, Shape};
use crate::parity::{distance, tokens};
use crate::rig::{Piece, Rig};
use crate::{bits, gpu_of, oracle};

/// Maximum bytes per read: the size of a piece of pinned memory.
const PIECE_BYTES: usize = 2 << 20;

fn with_threads(threads: usize) -> Box<dyn Device> {
    gpu_of(CudaBackend::from_env().load_threads(threads))
}

#[gpu_test]
fn weights_do_not_depend_on_the_loading_threads() {
    // The table has several parts for four threads, the last of them not full. The table of Q4_K is
    // read twice.
    for ty in [TensorType::Q8_0, TensorType::Q4K] {
        let shape = Shape { width: 256, vocab: 8_203, layers: 1, ..Shape::llama(ty) };
        let pieces = [Piece::new(0, 0, &tokens(shape.vocab, 3, 9))];
        let expected = Rig::new(oracle(), &shape, KvType::F16, 11).step(&pieces, 0);
        let mut alone = None;
        for threads in [1, 4] {
            let device = with_threads(threads);
            let found = Rig::new(device, &shape, KvType::F16, 11).step(&pieces, 0);
            let distance = distance(&found, &expected);
            assert!(distance < 2e-2, "{ty}, {threads} threads: {distance:.2e}");
            let found = bits(&found.logits[0]);
            assert_eq!(*alone.get_or_insert_with(|| found.clone()), found, "{ty}");
        }
    }
}

/// After an error, all pinned memory is recovered, so the device can load again after any number of
/// failures.
#[gpu_test]
fn a_failing_source_is_an_error_and_the_device_stays_usable() {
    for threads in [1, 4] {
        let mut device = with_threads(threads);
        let usage = MatrixUse { gather: false, multiply: true };
        for ty in [TensorType::Q8_0, TensorType::Q4K] {
            let (rows, cols) = (40_007, 256);
            let desc = MatrixDesc { name: "m", rows, cols, ty, usage };
            let mut random = Random(3);
            let len = rows as usize * ty.row_bytes(cols as usize).unwrap();
            let bytes: Vec<u8> = (0..len).map(|_| random.bits() as u8 & 0x3f).collect();
            let sound = InFile::new(&bytes);
            device.load_matrix(&desc, &sound).unwrap();
            let (reads, largest) = (sound.reads.into_inner(), sound.largest.into_inner());
            assert!(reads > threads && largest <= PIECE_BYTES, "{reads} reads of up to {largest}");
            let held = device.memory();
            for max_reads in 0..reads {
                let failing = InFile::failing(&bytes, max_reads);
                let error = device.load_matrix(&desc, &failing).unwrap_err();
                assert!(matches!(error, DeviceError::Source { .. }), "{error}");
            }
            assert_eq!(device.memory(), held, "what was not loaded is not counted");
            device.load_matrix(&desc, &InFile::new(&bytes)).unwrap();
            device.synchronize().unwrap();
        }
    }
}
