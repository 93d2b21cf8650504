//! Step blocks that wait for a launch in the step ring.

use walla_cuda::CudaBackend;
use walla_device::step::{OutputRow, ResultView, StepHeader, StepRow, StepViewMut};
use walla_device::{DeviceError, HostId, KvType};
use walla_reference_test::gpu_test;
use walla_types::TensorType;

use crate::model::{Random, Shape};
use crate::rig::{LAYOUT, Rig};
use crate::{gpu, gpu_of, in_a_child, is_emulated};

/// More consecutive launches than a step ring has slots.
const BURST: u32 = 100;

/// A step block with one row and step number `step`.
fn fill(bytes: &mut [u8], step: u64) {
    let view = StepViewMut::new(bytes, &LAYOUT).unwrap();
    *view.header = StepHeader { step, rows: 1, outputs: 1, sequences: 1, ..StepHeader::default() };
    view.rows[0] = StepRow {
        token: 1,
        previous: StepRow::NONE,
        flags: StepRow::LAST_OF_SEQUENCE,
        ..StepRow::default()
    };
    view.outputs[0] = OutputRow { flags: OutputRow::SAMPLE, top_p: 1.0, ..OutputRow::default() };
    view.tables[0] = 1;
}

/// The step number of the block that the latest launch used.
fn latest(rig: &mut Rig, host: HostId) -> u64 {
    let (stream, results) = (rig.stream, rig.results);
    let d = &mut *rig.device;
    d.download(stream, (results, 0), (host, 0), LAYOUT.result_bytes()).unwrap();
    d.synchronize().unwrap();
    let mut step = 0;
    d.read_host(host, 0, LAYOUT.result_bytes(), &mut |bytes| {
        step = ResultView::new(bytes, &LAYOUT).unwrap().header.step;
    })
    .unwrap();
    step
}

#[gpu_test]
fn every_launch_has_the_block_that_was_uploaded_last() {
    let device = gpu();
    let mut rig = Rig::new(device, &Shape::llama(TensorType::F32), KvType::F16, 1);
    let (stream, block, graph) = (rig.stream, rig.step, rig.graphs[0][1]);
    let d = &mut *rig.device;
    let results = d.create_host("results", LAYOUT.result_bytes()).unwrap();
    let hosts: Vec<_> =
        (0..2 * BURST).map(|_| d.create_host("step", LAYOUT.bytes()).unwrap()).collect();
    let mut random = Random(3);
    let (mut step, mut uploaded) = (0, 0);
    for round in 0..60 {
        let d = &mut *rig.device;
        let launches = if round % 10 == 9 { BURST } else { 1 + random.below(5) };
        let mut free = hosts.iter();
        for _ in 0..launches {
            // Most launches have a new block, some reuse the block of the previous launch, and some
            // uploads are replaced by another.
            for _ in 0..[0, 1, 1, 1, 2][random.below(5) as usize] {
                step += 1;
                uploaded = step;
                let host = *free.next().unwrap();
                d.write_host(host, 0, LAYOUT.bytes(), &mut |bytes| fill(bytes, step)).unwrap();
                d.upload(stream, host, block, LAYOUT.bytes_with(1)).unwrap();
            }
            d.launch(stream, graph).unwrap();
        }
        assert_eq!(latest(&mut rig, results), uploaded, "round {round}, {launches} launches");
    }
}

/// Makes the emulator refuse launches.
const REFUSED: &str = "WALLA_EMULATED_REFUSED_LAUNCHES";

const REFUSALS: &str = "step_ring::launches_that_are_refused_take_no_later_block";

#[gpu_test]
fn launches_that_are_refused_take_no_later_block() {
    if std::env::var_os(REFUSED).is_some() {
        return with_refusals();
    }
    let said = in_a_child(REFUSALS, (REFUSED, "47"));
    let told = said.lines().find(|line| line.contains("were refused") || line.contains("SKIPPED"));
    let told = told.expect("the child says how it ended");
    let is_emulated = is_emulated(&*gpu());
    assert!(!is_emulated || told.contains("were refused"), "{told}");
    println!("{told}");
}

/// Some launches of a program's kernels are refused, so it is unknown how much of a step was
/// executed.
fn with_refusals() {
    let device = gpu_of(CudaBackend::eager("a test says so"));
    let mut rig = Rig::new(device, &Shape::llama(TensorType::F32), KvType::F16, 1);
    let (stream, block, graph) = (rig.stream, rig.step, rig.graphs[0][1]);
    let results = rig.device.create_host("results", LAYOUT.result_bytes()).unwrap();
    let hosts = [(); 2].map(|()| rig.device.create_host("step", LAYOUT.bytes()).unwrap());
    let mut refused = 0;
    for step in 1..=90 {
        let d = &mut *rig.device;
        let host = hosts[step as usize % 2];
        d.write_host(host, 0, LAYOUT.bytes(), &mut |bytes| fill(bytes, step)).unwrap();
        let uploaded = d.upload(stream, host, block, LAYOUT.bytes_with(1));
        match uploaded.and_then(|()| d.launch(stream, graph)) {
            Ok(()) => assert_eq!(latest(&mut rig, results), step),
            Err(DeviceError::Failed { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    match refused {
        0 => println!("SKIPPED: only the emulator's launches are refused"),
        _ => println!("{refused} launches were refused"),
    }
}
