//! The profiling interface (CUPTI): records of API calls, kernels, copies and fills with their
//! times. The library is loaded when a session begins; its absence is reported as an error. For
//! benchmarks only: games do not include it.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::addr_of;
use std::sync::Mutex;

use cudarc::cupti::sys::{
    self, CUpti_Activity, CUpti_ActivityAPI, CUpti_ActivityKernel9, CUpti_ActivityKind,
    CUpti_ActivityMemcpy5, CUpti_ActivityMemset4, CUptiResult,
};
use cudarc::driver::sys::CUcontext;

/// Size of one record buffer, in 8-byte words: some 30,000 records.
const BUFFER_WORDS: usize = 1 << 20;

/// Maximum number of records kept; more are an error.
const MAX_RECORDS: usize = 4 << 20;

/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: hand over buffers that are not full.
const FLUSH_FORCED: u32 = 1;

const REQUIRED: &[&CStr] = &[
    c"cuptiActivityDisable",
    c"cuptiActivityEnable",
    c"cuptiActivityFlushAll",
    c"cuptiActivityGetNextRecord",
    c"cuptiActivityGetNumDroppedRecords",
    c"cuptiActivityRegisterCallbacks",
    c"cuptiGetResultString",
    c"cuptiGetTimestamp",
];

const KINDS: [CUpti_ActivityKind; 4] = [
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_DRIVER,
    // Not KERNEL, which keeps kernels from overlapping.
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET,
];

/// One record. Times are nanoseconds of one clock for host and device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The kernel's name, `copy` or `fill`; `None` for a driver call on the host.
    pub(crate) work: Option<String>,
    pub(crate) begin_nanos: u64,
    pub(crate) end_nanos: u64,
    /// The same for a call and for everything that it started.
    pub(crate) correlation: u32,
}

/// Records delivered by the library since the session began.
static COLLECTED: Mutex<Vec<Record>> = Mutex::new(Vec::new());

/// At most one session per process: the library has one set of callbacks.
static IN_USE: Mutex<()> = Mutex::new(());

/// A session: records are collected while it lives.
pub(crate) struct Session {
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl Session {
    /// Loads the library and starts recording.
    ///
    /// # Errors
    /// One line with the problem and its remedy.
    pub(crate) fn begin() -> Result<Self, String> {
        let alone = IN_USE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        probe()?;
        if let Ok(mut collected) = COLLECTED.lock() {
            collected.clear();
        }
        // SAFETY: both functions keep the contract of the callbacks: they give and take back
        // buffers that they allocated.
        let result = unsafe { sys::cuptiActivityRegisterCallbacks(Some(give), Some(take)) };
        said(result, "cuptiActivityRegisterCallbacks")?;
        let session = Self { _alone: alone };
        for kind in KINDS {
            // SAFETY: the symbol was probed. A kind that was enabled is disabled when the session
            // is dropped.
            said(unsafe { sys::cuptiActivityEnable(kind) }, "cuptiActivityEnable")?;
        }
        Ok(session)
    }

    /// The current time on the clock of the records.
    ///
    /// # Errors
    /// The library's error message.
    pub(crate) fn now_nanos(&self) -> Result<u64, String> {
        let mut nanos = 0;
        // SAFETY: the number lives through the call.
        said(unsafe { sys::cuptiGetTimestamp(&raw mut nanos) }, "cuptiGetTimestamp")?;
        Ok(nanos)
    }

    /// Ends the session. The caller has waited for the device.
    ///
    /// # Errors
    /// The library's error message, or that records were dropped.
    pub(crate) fn end(self) -> Result<Vec<Record>, String> {
        // SAFETY: the symbol was probed; buffers are returned through `take`.
        said(unsafe { sys::cuptiActivityFlushAll(FLUSH_FORCED) }, "cuptiActivityFlushAll")?;
        let mut dropped = 0;
        // SAFETY: the number lives through the call; no context means all of them.
        let result = unsafe {
            sys::cuptiActivityGetNumDroppedRecords(std::ptr::null_mut(), 0, &raw mut dropped)
        };
        said(result, "cuptiActivityGetNumDroppedRecords")?;
        let mut collected = COLLECTED.lock().map_err(|_| "a callback panicked".to_owned())?;
        if dropped > 0 || collected.len() >= MAX_RECORDS {
            return Err(format!("{dropped} records and more were dropped: measure less at once"));
        }
        Ok(std::mem::take(&mut *collected))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for kind in KINDS {
            // SAFETY: the symbol was probed; a kind that is not enabled is left alone.
            let _ = unsafe { sys::cuptiActivityDisable(kind) };
        }
    }
}

fn probe() -> Result<(), String> {
    // SAFETY: loading the library runs its initialisers; it is the vendor's, found on the system's
    // search path.
    if !unsafe { sys::is_culib_present() } {
        return Err(
            "no libcupti on the library search path (it comes with the CUDA toolkit)".to_owned()
        );
    }
    // SAFETY: the library is present, so this cannot panic.
    let library = unsafe { sys::culib() };
    for name in REQUIRED {
        // SAFETY: the symbol is only looked up, not called.
        let found = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) };
        found.map_err(|_| format!("libcupti has no {}", name.to_string_lossy()))?;
    }
    Ok(())
}

fn said(result: CUptiResult, call: &str) -> Result<(), String> {
    if result == CUptiResult::CUPTI_SUCCESS {
        return Ok(());
    }
    let mut words: *const c_char = std::ptr::null();
    // SAFETY: the pointer lives through the call.
    let found = unsafe { sys::cuptiGetResultString(result, &raw mut words) };
    if found != CUptiResult::CUPTI_SUCCESS || words.is_null() {
        return Err(format!("{call}: CUPTI error {}", result as u32));
    }
    // SAFETY: success means a static, terminated string.
    let words = unsafe { CStr::from_ptr(words) };
    Err(format!("{call}: {}", words.to_string_lossy()))
}

/// Gives the library a buffer.
unsafe extern "C" fn give(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let words = vec![0_u64; BUFFER_WORDS].into_boxed_slice();
    let start = Box::into_raw(words).cast::<u8>();
    // SAFETY: the library passes pointers to its own variables.
    unsafe { buffer.write(start) };
    // SAFETY: as above.
    unsafe { size.write(BUFFER_WORDS * 8) };
    // SAFETY: as above; 0 means as many as fit.
    unsafe { max_records.write(0) };
}

/// Takes back a buffer and reads its records.
unsafe extern "C" fn take(
    _context: CUcontext,
    _stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    if buffer.is_null() {
        return;
    }
    let mut records = Vec::new();
    let mut record: *mut CUpti_Activity = std::ptr::null_mut();
    loop {
        // SAFETY: the buffer is the library's own and `valid` of its bytes are records; `record` is
        // the iterator's position.
        let result = unsafe { sys::cuptiActivityGetNextRecord(buffer, valid, &raw mut record) };
        if result != CUptiResult::CUPTI_SUCCESS {
            break;
        }
        // SAFETY: the library has just put a whole record there.
        records.extend(unsafe { read(record) });
    }
    if let Ok(mut collected) = COLLECTED.lock()
        && collected.len() < MAX_RECORDS
    {
        collected.append(&mut records);
    }
    let words = std::ptr::slice_from_raw_parts_mut(buffer.cast::<u64>(), BUFFER_WORDS);
    // SAFETY: `give` made exactly this box, and the library is done with it.
    drop(unsafe { Box::from_raw(words) });
}

macro_rules! field {
    ($record:expr, $field:ident) => {
        // SAFETY: the record is of this type, or of a later version of it, which begins with the
        // same fields. It is read in place and unaligned, since records are packed and their enums
        // may hold values that this binding does not know.
        unsafe { addr_of!((*$record).$field).read_unaligned() }
    };
}

/// The fields that every kind of record has.
macro_rules! record {
    ($record:expr, $work:expr) => {
        Record {
            work: $work,
            begin_nanos: field!($record, start),
            end_nanos: field!($record, end),
            correlation: field!($record, correlationId),
        }
    };
}

/// Reads one record, if it is of a requested kind.
///
/// # Safety
/// `record` points to a whole record of the library's.
unsafe fn read(record: *const CUpti_Activity) -> Option<Record> {
    // SAFETY: every record begins with its kind; read as a number, since the library may know more
    // kinds than this binding.
    let kind = unsafe { record.cast::<u32>().read_unaligned() };
    let is = |wanted: CUpti_ActivityKind| kind == wanted as u32;
    if is(CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_DRIVER) {
        let call = record.cast::<CUpti_ActivityAPI>();
        Some(record!(call, None))
    } else if is(CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        let kernel = record.cast::<CUpti_ActivityKernel9>();
        let name = field!(kernel, name);
        let name = if name.is_null() {
            String::new()
        } else {
            // SAFETY: a non-null name is a terminated string that the library keeps alive.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Some(record!(kernel, Some(name)))
    } else if is(CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY) {
        let copy = record.cast::<CUpti_ActivityMemcpy5>();
        Some(record!(copy, Some("copy".to_owned())))
    } else if is(CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMSET) {
        let fill = record.cast::<CUpti_ActivityMemset4>();
        Some(record!(fill, Some("fill".to_owned())))
    } else {
        None
    }
}
