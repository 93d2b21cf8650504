//! A real sticky fault, in a child process.

use std::time::{Duration, Instant};

use walla_device::step::StepViewMut;
use walla_device::{
    CacheCommand, CompletionFlag, Device, DeviceError, EventId, HostId, KvType, MatrixDesc,
    MatrixUse, RopeDesc, StreamPriority,
};
use walla_reference_test::gpu_test;
use walla_types::{RopePairs, TensorType};

use crate::model::Shape;
use crate::parity::tokens;
use crate::rig::{LAYOUT, Piece, Rig};
use crate::{gpu, in_a_child, oracle};

/// Set in the process that breaks its device.
const CHILD: &str = "WALLA_TEST_FAULT_CHILD";

const NAME: &str = "fault::an_illegal_address_loses_the_device_once_and_the_process_continues";

/// A page index that is outside of all device memory.
const PAGE_OUTSIDE: u32 = 0x3fff_fff0;

#[gpu_test]
fn an_illegal_address_loses_the_device_once_and_the_process_continues() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let start = Instant::now();
    let said = in_a_child(NAME, (CHILD, "1"));
    assert!(said.contains("the CPU goes on"), "{said}");
    let facts = said.lines().filter(|line| line.starts_with("fault: "));
    facts.for_each(|line| println!("{line}"));
    println!("the child ended normally after {:.1} s", start.elapsed().as_secs_f64());
    // Only the child had the fault.
    gpu();
}

fn child() {
    let device = gpu();
    let shape = Shape::llama(TensorType::Q8_0);
    let text = tokens(shape.vocab, 4, 3);
    let mut rig = Rig::new(device, &shape, KvType::F16, 1);
    let expected = rig.step(&[Piece::new(0, 0, &text)], 0).rows[0].token;
    let lost = break_device(&mut rig);
    println!("fault: {lost}");
    assert!(lost.is_lost(), "{lost:?}");
    every_call_answers(&mut rig, &lost);
    let start = Instant::now();
    drop(rig);
    assert!(start.elapsed() < Duration::from_secs(5), "dropping a lost device took too long");
    println!("fault: dropping the lost device took {:.1} ms", start.elapsed().as_secs_f64() * 1e3);

    // The CPU recomputes the lost state.
    let mut rig = Rig::new(oracle(), &shape, KvType::F16, 1);
    assert_eq!(rig.step(&[Piece::new(0, 0, &text)], 0).rows[0].token, expected);
    println!("fault: the CPU goes on with the same token");
}

/// Runs a step whose page table points outside of all memory; returns the error of polling it.
fn break_device(rig: &mut Rig) -> DeviceError {
    let (stream, block, graph) = (rig.stream, rig.step, rig.graphs[0][0]);
    let d = &mut *rig.device;
    let host = d.create_host("a broken step", LAYOUT.bytes()).unwrap();
    let event = d.create_event().unwrap();
    d.write_host(host, 0, LAYOUT.bytes(), &mut |bytes| {
        let view = StepViewMut::new(bytes, &LAYOUT).unwrap();
        (view.header.rows, view.header.outputs, view.header.sequences) = (1, 1, 1);
        view.rows[0].position = 4;
        view.tables[..LAYOUT.pages_per_sequence as usize].fill(PAGE_OUTSIDE);
    })
    .unwrap();
    d.upload(stream, host, block, LAYOUT.bytes_with(1)).unwrap();
    d.launch(stream, graph).unwrap();
    // The fault may be reported here already, or by any later call.
    if let Err(error) = d.record(stream, event) {
        return error;
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match d.poll(event) {
            Ok(false) if Instant::now() < deadline => std::thread::yield_now(),
            Ok(is_complete) => panic!("no fault: complete {is_complete}"),
            Err(error) => return error,
        }
    }
}

/// After the loss, every call returns the same error, and none reaches the driver.
fn every_call_answers(rig: &mut Rig, lost: &DeviceError) {
    let (stream, graph, step, results) = (rig.stream, rig.graphs[0][0], rig.step, rig.results);
    // Handles of existing objects.
    let (host, event) = (HostId(0), EventId(0));
    let cache = rig.cache;
    let d: &mut dyn Device = &mut *rig.device;
    let watch = CompletionFlag { event, results: host, ring_slot: 0, step: 1 };
    let usage = MatrixUse { gather: false, multiply: true };
    let matrix = MatrixDesc { name: "after", rows: 1, cols: 8, ty: TensorType::F32, usage };
    let rope = RopeDesc { frequencies: &[1.0], magnitude: 1.0, pairs: RopePairs::Halves };
    let before = d.counters();
    let heard = [
        d.read_bytes_per_second().err(),
        d.load_matrix(&matrix, &[0_u8; 32]).err(),
        d.load_vector("after", &[1.0]).err(),
        d.load_rope(&rope).err(),
        d.create_cache(&crate::memory::cache(1)).err(),
        d.resize_cache(cache, 1).err(),
        d.create_buffer("after", 64).err(),
        d.create_host("after", 64).err(),
        d.create_mapped("after", 64).err(),
        d.create_stream(StreamPriority::Low).err(),
        d.create_event().err(),
        d.prepare(vec![]).err(),
        d.write_host(host, 0, 1, &mut |_| panic!("nobody writes")).err(),
        d.read_host(host, 0, 1, &mut |_| panic!("nobody reads")).err(),
        d.upload(stream, host, step, 1).err(),
        d.download(stream, (results, 0), (host, 0), 1).err(),
        d.launch(stream, graph).err(),
        d.launch_with_flag(stream, graph, &watch).err(),
        d.run_cache_ops(stream, cache, &[]).err(),
        d.run_cache_ops(stream, cache, &[CacheCommand::CopyPage { from: 1, to: 2 }]).err(),
        d.record(stream, event).err(),
        d.wait(stream, event).err(),
        d.poll(event).err(),
        d.synchronize().err(),
    ];
    for error in &heard {
        assert_eq!(error.as_ref(), Some(lost));
    }
    assert_eq!(d.counters() - before, walla_device::DeviceCounters::default());
    println!("fault: {} later calls answered the same and none reached the driver", heard.len());
}
