//! Small kernels for features that machines get wrong: divergence, barriers, clusters, accesses
//! outside memory.

#![cfg(unix)]

use walla_emulator::machine::{Fault, Launch, run};
use walla_emulator::memory::Memory;
use walla_emulator::ptx::Module;

/// PTX of a kernel `k` with one parameter, an address, in `%out`; `%t` is the thread, `%at` the
/// address of its word.
fn kernel(head: &str, body: &str) -> String {
    format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n{head}\n.visible .entry k(.param .u64 k_param_0)\n{{\n\
         .reg .pred %p<9>;\n.reg .b32 %r<99>;\n.reg .b64 %d<99>;\n.reg .b32 %t;\n.reg .b64 %out, %at;\n\
         ld.param.u64 %out, [k_param_0];\nmov.u32 %t, %tid.x;\nmul.wide.u32 %at, %t, 4;\nadd.s64 %at, %out, %at;\n{body}\nret;\n}}\n"
    )
}

/// Launch configuration.
struct With {
    blocks: u32,
    threads: u32,
    cluster: u32,
    shared_bytes: u32,
}

const ONE_WARP: With = With { blocks: 1, threads: 32, cluster: 1, shared_bytes: 0 };

/// Runs the kernel on words that are initially zero, and returns them.
fn try_run(text: &str, with: &With, words: usize) -> Result<Vec<u32>, Fault> {
    let kernel = Module::parse(text).unwrap().kernel("k").unwrap().unwrap();
    let out = vec![0_u64; words.div_ceil(2)];
    let address = out.as_ptr().expose_provenance() as u64;
    let memory = Memory::new();
    memory.add(address..address + 4 * words as u64);
    let launch = Launch {
        kernel: &kernel,
        grid: [with.blocks, 1, 1],
        block: [with.threads, 1, 1],
        cluster: with.cluster,
        shared_bytes: with.shared_bytes,
        params: &address.to_le_bytes(),
    };
    run(&launch, &memory)?;
    // The kernel has written there without the compiler's knowledge.
    let out = std::hint::black_box(out);
    Ok(out.iter().flat_map(|pair| [*pair as u32, (*pair >> 32) as u32]).take(words).collect())
}

fn words(text: &str, with: &With, words: usize) -> Vec<u32> {
    try_run(text, with, words).unwrap()
}

#[test]
fn every_thread_of_every_block_runs_once() {
    let text = kernel(
        "",
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, %t;\n\
         mul.wide.u32 %d1, %r3, 4; add.s64 %d2, %out, %d1; atom.global.add.u32 %r4, [%d2], %r3;",
    );
    let with = With { blocks: 5, threads: 45, ..ONE_WARP };
    assert_eq!(words(&text, &with, 225), (0..225).collect::<Vec<_>>());
}

#[test]
fn diverged_lanes_reconverge() {
    // Lane t iterates t times; then all lanes swap with their neighbours.
    let text = kernel(
        "",
        "mov.b32 %r1, 0; mov.b32 %r2, 100;\n\
         again: setp.ge.u32 %p1, %r1, %t; @%p1 bra $end; add.s32 %r1, %r1, 1; add.s32 %r2, %r2, 2; bra again;\n\
         $end: shfl.sync.bfly.b32 %r3|%p2, %r2, 1, 31, -1; st.global.u32 [%at], %r3;",
    );
    let expected: Vec<u32> = (0..32).map(|t| 100 + 2 * (t ^ 1)).collect();
    assert_eq!(words(&text, &ONE_WARP, 32), expected);
}

#[test]
fn a_shuffle_waits_for_lanes_from_later_code() {
    // Odd lanes reach the shuffle first, since it precedes the code of even lanes.
    let text = kernel(
        "",
        "and.b32 %r1, %t, 1; setp.eq.s32 %p1, %r1, 0; mov.b32 %r2, 7; @%p1 bra $even;\n\
         $swap: shfl.sync.bfly.b32 %r3|%p2, %r2, 1, 31, -1; st.global.u32 [%at], %r3; bra $end;\n\
         $even: add.s32 %r2, %r2, %t; bra $swap;\n\
         $end:",
    );
    let expected: Vec<u32> = (0..32).map(|t| if t % 2 == 0 { 7 } else { 7 + (t ^ 1) }).collect();
    assert_eq!(words(&text, &ONE_WARP, 32), expected);
}

#[test]
fn a_barrier_does_not_wait_for_exited_warps() {
    // Each of three warps writes a word to shared memory; a fourth ends before. Each thread reads
    // its neighbour's word.
    let text = kernel(
        ".shared .align 4 .b8 sums[12];",
        "shr.u32 %r1, %t, 5; setp.eq.s32 %p1, %r1, 3; @%p1 ret; and.b32 %r2, %t, 31; setp.ne.s32 %p2, %r2, 0;\n\
         mov.u32 %r3, sums; shl.b32 %r4, %r1, 2; add.s32 %r5, %r3, %r4; add.s32 %r6, %r1, 10;\n\
         @!%p2 st.shared.u32 [%r5], %r6; bar.sync 0;\n\
         add.s32 %r7, %r1, 1; rem.u32 %r7, %r7, 3; shl.b32 %r7, %r7, 2; add.s32 %r7, %r7, %r3;\n\
         ld.shared.u32 %r8, [%r7]; st.global.u32 [%at], %r8;",
    );
    let found = words(&text, &With { threads: 128, ..ONE_WARP }, 128);
    assert_eq!([found[0], found[40], found[95], found[96]], [11, 12, 10, 0]);
}

#[test]
fn blocks_of_a_cluster_write_into_each_others_memory() {
    // Each block sends its number to the next one and waits for four bytes.
    let text = kernel(
        ".extern .shared .align 16 .b8 dynamic[];",
        "mov.u32 %r1, dynamic; mov.u32 %r2, %ctaid.x; setp.ne.s32 %p1, %t, 0; @%p1 bra $ready;\n\
         mbarrier.init.shared::cta.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 4;\n\
         $ready: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; @%p1 bra $wait;\n\
         add.s32 %r3, %r2, 1; and.b32 %r3, %r3, 3; add.s32 %r4, %r1, 16; add.s32 %r5, %r2, 50;\n\
         mapa.shared::cluster.u32 %r6, %r4, %r3; mapa.shared::cluster.u32 %r7, %r1, %r3;\n\
         st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], {%r5}, [%r7];\n\
         $wait: { .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r1], 0; @!done bra again; }\n\
         ld.shared.u32 %r8, [%r1+16]; mad.lo.s32 %r9, %r2, 64, %t; mul.wide.u32 %d1, %r9, 4; add.s64 %d1, %d1, %out;\n\
         st.global.u32 [%d1], %r8;",
    );
    let with = With { blocks: 8, threads: 64, cluster: 4, shared_bytes: 32 };
    let text =
        text.replace("mov.u32 %r2, %ctaid.x;", "mov.u32 %r2, %ctaid.x; and.b32 %r2, %r2, 3;");
    let found = words(&text, &with, 256);
    let expected: Vec<u32> = (0..256).map(|i| 50 + (i / 64 + 3) % 4).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_function_is_called() {
    let head = ".func (.param .b64 back) twice(.param .align 8 .b8 what[16]) {\n.reg .b64 %d<4>;\n\
        ld.param.u64 %d1, [what]; ld.param.u64 %d2, [what+8]; add.s64 %d3, %d1, %d2; st.param.b64 [back], %d3; ret; }";
    let body = "cvt.u64.u32 %d1, %t;\n\
        { .param .align 8 .b8 param0[16]; st.param.b64 [param0], %d1; st.param.b64 [param0+8], %d1;\n\
        .param .b64 retval0; call.uni (retval0), twice, (param0); ld.param.b64 %d2, [retval0]; }\n\
        st.global.u32 [%at], %d2;";
    let expected: Vec<u32> = (0..32).map(|t| 2 * t).collect();
    assert_eq!(words(&kernel(head, body), &ONE_WARP, 32), expected);
}

#[test]
fn invalid_accesses_are_faults_with_a_location() {
    let beyond = kernel("", "st.global.u32 [%at+4], %t;");
    let Err(Fault::IllegalAddress(words)) = try_run(&beyond, &ONE_WARP, 32) else {
        panic!("beyond")
    };
    assert!(words.starts_with("k, block [0, 0, 0]"), "{words}");
    let odd = kernel("", "st.global.u32 [%at+2], %t;");
    assert!(matches!(try_run(&odd, &ONE_WARP, 33), Err(Fault::Misaligned(_))));
    let shared =
        kernel(".extern .shared .align 16 .b8 dynamic[];", "st.shared.u32 [dynamic+64], %t;");
    let with = With { shared_bytes: 64, ..ONE_WARP };
    assert!(matches!(try_run(&shared, &with, 32), Err(Fault::IllegalAddress(_))));
    assert!(matches!(try_run(&kernel("", "trap;"), &ONE_WARP, 32), Err(Fault::Failed(_))));
}

#[test]
fn deadlocked_threads_are_a_fault() {
    let parted = kernel(
        "",
        "setp.lt.u32 %p1, %t, 9; @%p1 bra $other; bar.sync 0; bra $end; $other: bar.sync 0; $end:",
    );
    let Err(Fault::Failed(words)) = try_run(&parted, &ONE_WARP, 32) else { panic!("parted") };
    assert!(words.contains("wait for each other"), "{words}");
    let never = kernel(
        ".shared .align 8 .b8 barrier[8];",
        "mov.u32 %r1, barrier; mbarrier.init.shared::cta.b64 [%r1], 2;\n\
         $again: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0; @!%p1 bra $again;",
    );
    let Err(Fault::Failed(words)) = try_run(&never, &ONE_WARP, 32) else { panic!("never") };
    assert!(words.contains("for ever"), "{words}");
}

#[test]
fn unknown_instructions_are_named_with_their_line() {
    let text = kernel("", "frobnicate.b32 %r1, %r2;");
    let line = 1 + text.lines().position(|line| line.starts_with("frobnicate")).unwrap();
    let module = Module::parse(&text).unwrap();
    let why = module.kernel("k").unwrap().unwrap_err();
    assert!(why.contains(&format!("k: line {line}: frobnicate.b32")), "{why}");
    assert!(module.kernel("another").is_none());
    assert!(Module::parse("no text").is_err());
}
