//! Two GPUs of one machine, in one process.

use std::thread;

use walla_cuda::CudaBackend;
use walla_device::{Backend, KvType, OpenOptions};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::Shape;
use crate::parity::tokens;
use crate::rig::{Piece, Rig};
use crate::{gpu, in_a_child, is_emulated};

/// Number of GPUs to emulate; set in the process that tests two.
const DEVICES: &str = "WALLA_EMULATED_DEVICES";

const NAME: &str = "two_gpus::two_gpus_of_a_process_give_the_same_tokens_as_each_alone";

/// Output of the child if it finds two.
const BOTH: &str = "two GPUs agree";

#[gpu_test]
fn two_gpus_of_a_process_give_the_same_tokens_as_each_alone() {
    let first = gpu();
    let backend = CudaBackend::from_env();
    if backend.devices().unwrap().len() > 1 {
        return two_gpus(&backend);
    }
    if !is_emulated(&*first) {
        println!("SKIPPED: one GPU");
        return;
    }
    assert!(std::env::var_os(DEVICES).is_none(), "the emulator has as many as it is told to");
    let said = in_a_child(NAME, (DEVICES, "2"));
    assert!(said.contains(BOTH), "{said}");
}

fn two_gpus(backend: &CudaBackend) {
    let open = |name: &str| backend.open(name, &OpenOptions::default()).unwrap();
    let shape = Shape::llama(TensorType::Q4K);
    let rig = |device| Rig::with_results(device, &shape, KvType::F16, 2, true);
    let expected = Talk::new(rig(open("cuda:0")), &shape).until_its_end();

    // Alternately on one thread: every call makes its GPU's context current.
    let mut talks = ["cuda:0", "cuda:1"].map(|name| Talk::new(rig(open(name)), &shape));
    for _ in 0..TURNS / 2 {
        talks.iter_mut().for_each(Talk::turn);
    }
    // One GPU is dropped; the other continues on another thread.
    let [first, second] = talks;
    drop(first);
    let said = thread::spawn(move || second.until_its_end()).join().unwrap();
    assert_eq!(said, expected, "cuda:1, beside cuda:0");

    // Concurrently.
    let [first, second] = ["cuda:0", "cuda:1"].map(|name| {
        let talk = Talk::new(rig(open(name)), &shape);
        thread::spawn(move || talk.until_its_end())
    });
    assert_eq!(first.join().unwrap(), expected, "cuda:0, beside cuda:1");
    assert_eq!(second.join().unwrap(), expected, "cuda:1, beside cuda:0");
    println!("{BOTH}");
}

const TURNS: usize = 8;

/// One sequence on one GPU: a prompt, then each sampled token fed back.
struct Talk {
    rig: Rig,
    said: Vec<u32>,
}

impl Talk {
    const PROMPT: usize = 9;

    fn new(mut rig: Rig, shape: &Shape) -> Self {
        let prompt = tokens(shape.vocab, Self::PROMPT, 8);
        let said = vec![rig.step(&[Piece::new(0, 0, &prompt)], 0).rows[0].token];
        Self { rig, said }
    }

    fn turn(&mut self) {
        let position = (Self::PROMPT + self.said.len() - 1) as u32;
        let last = self.said.last().unwrap().cast_signed();
        self.said.push(self.rig.step(&[Piece::new(0, position, &[last])], 0).rows[0].token);
    }

    fn until_its_end(mut self) -> Vec<u32> {
        while self.said.len() < TURNS {
            self.turn();
        }
        self.said
    }
}
