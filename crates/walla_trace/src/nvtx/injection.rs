//! Injection interface of NVTX 3 for profilers. The program loads the library that
//! `NVTX_INJECTION64_PATH` names and passes it tables of function pointers, which the tool fills
//! with its own functions. Numbers and layouts are from NVTX 3's interface between programs and
//! tools, `nvtxTypes.h` in <https://github.com/NVIDIA/NVTX>.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;
use walla_types::environment::{self, NVTX_INJECTION};

use super::{Pop, Push, Ranges};

/// Ids of the export tables.
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;

/// Number of functions in each module's table, including the unused entry 0. Modules: 1 core, 2
/// CUDA, 3 OpenCL, 4 CUDA runtime, 5 domains, 6 synchronisation. walla calls two functions of the
/// core only, but tools refuse a program that lacks a table.
const FUNCTIONS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];

const MAX_FUNCTIONS: usize = 16;

const CORE: usize = 1;

/// Indices of `nvtxRangePushA` and `nvtxRangePop` in the core table.
const PUSH: usize = 9;
const POP: usize = 11;

/// A function of the tool, or null before the tool sets it.
type Slot = AtomicPtr<c_void>;

static SLOTS: [[Slot; MAX_FUNCTIONS]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; MAX_FUNCTIONS] }; FUNCTIONS.len()];

/// Table that tools write through: a pointer to each slot, null at entry 0 and after the last
/// entry.
type Table = [Option<&'static Slot>; MAX_FUNCTIONS + 1];

static TABLES: [Table; FUNCTIONS.len()] = tables();

const fn tables() -> [Table; FUNCTIONS.len()] {
    let mut tables = [[None; MAX_FUNCTIONS + 1]; FUNCTIONS.len()];
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

/// Writes the table of `module` and its size and returns 1; returns 0 for an unknown module.
extern "system" fn function_table(
    module: c_uint,
    table: *mut *const Table,
    functions: *mut c_uint,
) -> c_int {
    let module = module as usize;
    let known = TABLES.get(module).zip(FUNCTIONS.get(module)).filter(|_| module >= CORE);
    let Some((found, &count)) = known else { return 0 };
    if !table.is_null() {
        // SAFETY: the tool passes a valid pointer for the table, or null.
        unsafe { table.write(found) };
    }
    if !functions.is_null() {
        // SAFETY: the tool passes a valid pointer for the count, or null.
        unsafe { functions.write(count as c_uint) };
    }
    1
}

extern "system" fn set_tool_version(_version: u32) {}

type Initialize = unsafe extern "system" fn(extern "system" fn(u32) -> *const c_void) -> c_int;

/// Connects to the profiler that started this program. Returns `None` if no profiler did, or if it
/// does not accept ranges.
pub(super) fn find() -> Option<Ranges> {
    let path = environment::nvtx_injection()?;
    // SAFETY: loading runs the library's initialisers; the user who set the variable requested it.
    let library = unsafe { Library::new(&path) };
    let library = library
        .inspect_err(|error| tracing::warn!(%error, "{NVTX_INJECTION} names no library that loads"))
        .ok()?;
    // SAFETY: `Initialize` is the type of this entry point.
    let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") };
    let initialize = *initialize
        .inspect_err(
            |error| tracing::warn!(%error, "the library that {NVTX_INJECTION} names is no tool"),
        )
        .ok()?;
    // SAFETY: the tables are static and have the layout that the interface specifies.
    let taken = unsafe { initialize(export_table) };
    // The tool is initialised: its functions may be called until the process ends.
    std::mem::forget(library);
    if taken == 0 {
        tracing::warn!("the tool that {NVTX_INJECTION} names refuses");
        return None;
    }
    let (push, pop) = (slot(PUSH)?, slot(POP)?);
    // SAFETY: the interface specifies that the tool stores a function of this type there.
    let push = unsafe { std::mem::transmute::<*mut c_void, Push>(push) };
    // SAFETY: as above.
    let pop = unsafe { std::mem::transmute::<*mut c_void, Pop>(pop) };
    Some(Ranges { push, pop })
}

/// The function that the tool stored, or `None` if the tool accepts no ranges.
fn slot(which: usize) -> Option<*mut c_void> {
    let function = SLOTS[CORE][which].load(Ordering::Acquire);
    (!function.is_null()).then_some(function)
}
