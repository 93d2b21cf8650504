//! The way in that NVTX 3 gives to profilers: the program loads the library that
//! `NVTX_INJECTION64_PATH` names and hands it tables of function pointers, into which it writes its
//! own. Numbers and layouts are those of NVTX 3's interface between programs and tools,
//! `nvtxTypes.h` in <https://github.com/NVIDIA/NVTX>.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

use super::{Pop, Push, Ranges};

const VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// Export tables.
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;

/// Tables of functions, by module, and how many functions each has, with a first one that is none:
/// the core, CUDA, OpenCL, CUDA's runtime, domains, synchronisation. walla calls two of the core
/// alone, but tools refuse a program that lacks a table.
const FUNCTIONS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];

const FUNCTIONS_MAX: usize = 16;

const CORE: usize = 1;

/// `nvtxRangePushA` and `nvtxRangePop` in the core.
const PUSH: usize = 9;
const POP: usize = 11;

/// A tool's function, or null while it has none.
type Slot = AtomicPtr<c_void>;

static SLOTS: [[Slot; FUNCTIONS_MAX]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; FUNCTIONS_MAX] }; FUNCTIONS.len()];

/// Where tools write: a pointer to each slot, but for the first, which is none; ended by another
/// that is none.
type Table = [Option<&'static Slot>; FUNCTIONS_MAX + 1];

static TABLES: [Table; FUNCTIONS.len()] = tables();

const fn tables() -> [Table; FUNCTIONS.len()] {
    let mut tables = [[None; FUNCTIONS_MAX + 1]; FUNCTIONS.len()];
    let mut module = CORE;
    while module < FUNCTIONS.len() {
        let mut function = 1;
        while function < FUNCTIONS[module] {
            tables[module][function] = Some(&SLOTS[module][function]);
            function += 1;
        }
        module += 1;
    }
    tables
}

#[repr(C)]
struct Callbacks {
    bytes: usize,
    function_table: extern "system" fn(c_uint, *mut *const Table, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "system" fn(u32),
}

const _: () = assert!(size_of::<Callbacks>() == 16 && size_of::<VersionInfo>() == 24);
const _: () = assert!(size_of::<Option<&Slot>>() == size_of::<usize>());

static EXPORTED_CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), function_table };
static EXPORTED_VERSION: VersionInfo =
    VersionInfo { bytes: size_of::<VersionInfo>(), version: 3, reserved: 0, set_tool_version };

extern "system" fn export_table(which: u32) -> *const c_void {
    match which {
        CALLBACKS => ptr::from_ref(&EXPORTED_CALLBACKS).cast(),
        VERSION_INFO => ptr::from_ref(&EXPORTED_VERSION).cast(),
        _ => ptr::null(),
    }
}

/// Answers 1 and a table where there is one.
extern "system" fn function_table(
    module: c_uint,
    table: *mut *const Table,
    functions: *mut c_uint,
) -> c_int {
    let module = module as usize;
    let known = TABLES.get(module).zip(FUNCTIONS.get(module)).filter(|_| module >= CORE);
    let Some((found, &count)) = known else { return 0 };
    if !table.is_null() {
        // SAFETY: the tool gives a place for a pointer, or null.
        unsafe { table.write(found) };
    }
    if !functions.is_null() {
        // SAFETY: the tool gives a place for a number, or null.
        unsafe { functions.write(count as c_uint) };
    }
    1
}

extern "system" fn set_tool_version(_version: u32) {}

type Initialise = unsafe extern "system" fn(extern "system" fn(u32) -> *const c_void) -> c_int;

/// Lets in the profiler that started this program, if one did and if it takes ranges.
pub(super) fn find() -> Option<Ranges> {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
    // SAFETY: loading runs the library's initialisers; whoever started the program asked for it.
    let library = unsafe { Library::new(&path) };
    let library = library
        .inspect_err(|error| tracing::warn!(%error, "{VARIABLE} names no library that loads"))
        .ok()?;
    // SAFETY: the type is the entry point's.
    let initialise = unsafe { library.get::<Initialise>(b"InitializeInjectionNvtx2\0") };
    let initialise = *initialise
        .inspect_err(|error| tracing::warn!(%error, "the library that {VARIABLE} names is no tool"))
        .ok()?;
    // SAFETY: the tables are static and laid out as the interface says.
    let taken = unsafe { initialise(export_table) };
    // It has been let in: its functions may be called until the process ends.
    std::mem::forget(library);
    if taken == 0 {
        tracing::warn!("the tool that {VARIABLE} names refuses");
        return None;
    }
    let (push, pop) = (slot(PUSH)?, slot(POP)?);
    // SAFETY: the tool wrote a function of this type there, as the interface says.
    let push = unsafe { std::mem::transmute::<*mut c_void, Push>(push) };
    // SAFETY: as above.
    let pop = unsafe { std::mem::transmute::<*mut c_void, Pop>(pop) };
    Some(Ranges { push, pop })
}

/// What the tool wrote. It takes no ranges if it wrote nothing.
fn slot(which: usize) -> Option<*mut c_void> {
    let function = SLOTS[CORE][which].load(Ordering::Acquire);
    (!function.is_null()).then_some(function)
}
