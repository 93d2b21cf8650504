//! After construction nothing allocates: plans a thousand steps under a counting allocator.
#![expect(unsafe_code, reason = "a counting global allocator requires unsafe code")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use walla_plan::{
    Batch, BatchLimits, Governor, GovernorOptions, KvCommands, KvLedger, LedgerOptions, Limits,
    LinearCost, NextWork, Output, OutputMap, Plan, PlanRequest, Splitter, StepCost, StepWork,
    TokenInput, UBatch, plan,
};
use walla_types::{SeqId, TokenId};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is forwarded to `System` unchanged. The counter is a plain thread-local
// without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, and the pointer was allocated by
        // `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn a_step_allocates_nothing_even_the_first_time() {
    let limits = BatchLimits::new(1_000, 32, 256);
    let options = LedgerOptions {
        page_tokens: 16,
        pages: 33,
        max_pages_per_sequence: 8,
        max_sequences: 32,
        ..LedgerOptions::default()
    };
    let mut ledger = KvLedger::new(options).unwrap();
    let mut commands = KvCommands::with_capacity(256);
    let mut batch = Batch::new(limits);
    let (mut splitter, mut outputs) = (Splitter::new(limits), OutputMap::new(limits));
    let mut ubatch = UBatch::with_capacity(64);
    let (mut refused, mut copied, mut split_steps) = (0, 0, 0);

    let mut step = |number: u32| {
        batch.clear();
        for seq in (0..32).map(SeqId) {
            let reads_prompt = seq.0 % 7 == number % 7;
            let tokens = if reads_prompt { 1 + number % 20 } else { 1 };
            for _ in 0..tokens {
                let token = TokenInput::Id(TokenId(number % 1_000));
                let _ = batch.push(token, None, seq, Output::SampleAndLogits);
            }
        }
        if let Ok(checked) = batch.check(&ledger) {
            let mut split = checked.split(&mut splitter, &mut outputs);
            split.simple(40, &mut ubatch);
            split.equal(40, &mut ubatch);
            while split.ragged(64, &mut ubatch) {}
            assert!(outputs.row(-1).is_ok());
            split_steps += 1;
            for (seq, tokens) in checked.sequences() {
                refused += u32::from(ledger.append(seq, tokens, &mut commands).is_err());
            }
        }
        ledger.retire(u64::from(number));
        ledger.release_up_to(u64::from(number).saturating_sub(2));
        commands.clear();
        let (source, destination) = (SeqId(number % 32), SeqId((number * 5 + 1) % 32));
        let _ = ledger.remove(destination, .., &mut commands);
        copied += u32::from(ledger.copy(source, destination, .., &mut commands).is_ok());
        let _ = ledger.remove_and_shift(SeqId((number * 3) % 32), 3..9, &mut commands);
        ledger.confine(30 + number % 4, &mut commands);
    };
    let allocations = allocations_of(|| (1..1_000).for_each(&mut step));
    assert_eq!(allocations, 0);
    assert!(
        refused > 100 && copied > 100,
        "the work should exercise refusals ({refused}) and copies ({copied})"
    );
}

#[test]
fn a_plan_allocates_nothing_even_the_first_time() {
    let agents = 2_000;
    let options = LedgerOptions { max_sequences: agents, pages: 300, ..LedgerOptions::default() };
    let mut ledger = KvLedger::new(options).unwrap();
    for seq in (0..250).map(SeqId) {
        ledger.append(seq, 16, &mut KvCommands::with_capacity(0)).unwrap();
    }
    let cost = LinearCost { step_micros: 300.0, row_micros: 2.0, ..LinearCost::default() };
    let limits = Limits { cost: Some(&cost), ..Limits::default() };
    let mut requests: Vec<_> = (0..agents)
        .map(|seq| {
            let state = match seq % 5 {
                0 | 1 => NextWork::Prefill { tokens: 2_000 },
                _ => NextWork::Decoding,
            };
            PlanRequest { waited_frames: seq % 90, ..PlanRequest::new(SeqId(seq), state) }
        })
        .collect();
    let mut frame = Plan::new(agents);
    let allocations = allocations_of(|| {
        for priority in 0..20 {
            requests[7].priority = priority;
            plan(&requests, &ledger, &limits, &mut frame).unwrap();
        }
    });
    assert_eq!(allocations, 0);
    assert!(!frame.decode().is_empty() && !frame.deferred().is_empty());
}

#[test]
fn a_governed_frame_allocates_nothing() {
    let mut governor = Governor::new(GovernorOptions::default(), StepCost::guess());
    let ledger = KvLedger::new(LedgerOptions::default()).unwrap();
    let requests = [PlanRequest::new(SeqId(0), NextWork::Decoding)];
    let mut frame = Plan::new(4);
    let allocated = allocations_of(|| {
        for _ in 0..1_000 {
            governor.begin_frame();
            let limits = governor.limits(
                Limits::default(),
                StepWork::decode(1, 1),
                StepWork::decode(64, 64),
            );
            plan(&requests, &ledger, &limits, &mut frame).unwrap();
            let step = governor.submit(frame.step());
            governor.observe(step, 300_000);
        }
    });
    assert_eq!(allocated, 0);
}
