//! A mark allocates nothing, with or without a trace file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use walla_trace::{FirstToken, Stage, TraceFile, enter, first_token, host_span, now_nanos};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Only this thread is counted: the writer thread may allocate.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

#[expect(unsafe_code, reason = "an allocator that counts")]
// SAFETY: every call is forwarded unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_COUNTED.try_with(Cell::get).unwrap_or(false) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of_marks() -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    IS_COUNTED.set(true);
    for _ in 0..1_000 {
        let begin = now_nanos();
        for &stage in Stage::ALL {
            drop(enter(stage));
        }
        host_span("frame", begin..now_nanos());
        first_token(&FirstToken {
            agent: 1,
            reply_id: 2,
            arrived_nanos: begin,
            encoding_nanos: begin + 1..begin + 2,
            prefill_nanos: begin + 2..begin + 3,
            token_nanos: begin + 4,
        });
    }
    IS_COUNTED.set(false);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn marks_allocate_nothing() {
    assert_eq!(allocations_of_marks(), 0, "nobody listens");
    let folder = tempfile::tempdir().unwrap();
    let trace = TraceFile::start(folder.path().join("trace.json")).unwrap();
    assert_eq!(allocations_of_marks(), 0, "a file is written");
    let summary = trace.finish().unwrap();
    // A first token has four parts here, because its prefill begins at once, a begin and an end.
    let marks = 1_000 * (Stage::ALL.len() as u64 + 1 + 4 + 2);
    assert_eq!(summary.spans + summary.spans_lost, marks);
}
