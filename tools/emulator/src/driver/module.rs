//! Modules and their kernels.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{ptr, slice};

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule, CUresult};

use super::context::current;
use super::device::write_words;
use super::facts::{SHARED_BYTES, facts};
use super::table::{Table, handle};
use super::{Outcome, answer, give};
use crate::ptx;

/// Magic bytes of machine code: an ELF file, or a fat binary.
const MACHINE_CODE: [&[u8]; 2] = [b"\x7fELF", b"\x50\xed\x55\xba"];

/// A loaded module.
pub(super) struct Module {
    code: Arc<ptx::Module>,
}

/// A kernel of a module.
pub(super) struct Function {
    /// The module's handle.
    module: usize,
    /// Space into which it was loaded.
    pub(super) space: usize,
    pub(super) kernel: Arc<ptx::Kernel>,
    /// Maximum shared memory of a launch, dynamic and static together.
    max_shared_bytes: AtomicU32,
}

pub(super) static MODULES: Table<Module> = Table::new();
pub(super) static FUNCTIONS: Table<Function> = Table::new();

impl Function {
    fn new(module: usize, space: usize, kernel: Arc<ptx::Kernel>) -> Self {
        Self { module, space, kernel, max_shared_bytes: AtomicU32::new(SHARED_BYTES) }
    }

    /// Maximum shared memory of a launch, dynamic and static together.
    pub(super) fn max_shared_bytes(&self) -> u32 {
        self.max_shared_bytes.load(Ordering::Relaxed)
    }

    /// Sets the maximum dynamic shared memory of launches.
    fn allow_shared(&self, dynamic_bytes: c_int) -> Outcome {
        let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
        let dynamic_bytes = u32::try_from(dynamic_bytes).map_err(|_| refused)?;
        let whole = dynamic_bytes.checked_add(self.kernel.shared_bytes()).ok_or(refused)?;
        if whole > facts()?.shared_bytes_optin {
            return Err(refused);
        }
        self.max_shared_bytes.store(whole.max(SHARED_BYTES), Ordering::Relaxed);
        Ok(())
    }
}

/// Parses PTX once per process, as the driver caches compiled code.
fn parse(text: &str) -> Result<Arc<ptx::Module>, String> {
    static PARSED: Mutex<Option<HashMap<String, Arc<ptx::Module>>>> = Mutex::new(None);
    let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    let parsed = parsed.get_or_insert_default();
    if let Some(module) = parsed.get(text) {
        return Ok(Arc::clone(module));
    }
    let module = Arc::new(ptx::Module::parse(text)?);
    parsed.insert(text.to_owned(), Arc::clone(&module));
    Ok(module)
}

/// The code, if this device can run it; otherwise the driver's error number and a description.
fn load(image: &CStr) -> Result<Arc<ptx::Module>, (CUresult, String)> {
    let invalid = |words: String| (CUresult::CUDA_ERROR_INVALID_PTX, words);
    let bytes = image.to_bytes();
    if MACHINE_CODE.iter().any(|start| bytes.starts_with(start)) {
        let words = "machine code of a chip that is not here".to_owned();
        return Err((CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, words));
    }
    let text = image.to_str().map_err(|error| invalid(error.to_string()))?;
    let module = parse(text).map_err(invalid)?;
    let (major, minor) = facts().map_err(|error| (error, String::new()))?.capability;
    if module.target() > 10 * major + minor {
        return Err(invalid(format!("text for sm_{} on {major}.{minor}", module.target())));
    }
    Ok(module)
}

/// The caller's buffer for error messages, and its size in bytes.
struct Log {
    place: *mut c_char,
    room: usize,
}

impl Log {
    /// Searches the options for it.
    ///
    /// # Safety
    /// Both arrays are null or have `count` elements.
    unsafe fn find(count: c_uint, options: *const c_uint, values: *const *mut c_void) -> Self {
        let mut log = Self { place: ptr::null_mut(), room: 0 };
        if options.is_null() || values.is_null() {
            return log;
        }
        // SAFETY: the caller guarantees `count` elements.
        let options = unsafe { slice::from_raw_parts(options, count as usize) };
        // SAFETY: as above.
        let values = unsafe { slice::from_raw_parts(values, count as usize) };
        for (option, value) in options.iter().zip(values) {
            if *option == CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_uint {
                log.place = value.cast();
            } else if *option == CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_uint {
                // The lower 32 bits of the value are the size.
                log.room = value.addr() as u32 as usize;
            }
        }
        log
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    place: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CUresult {
    let find = || {
        let context = current()?;
        if image.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: PTX ends with a zero, and the header of machine code contains zeros.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        let code = load(image).map_err(|(error, words)| {
            // SAFETY: guaranteed by the caller.
            let log = unsafe { Log::find(count, options, values) };
            // SAFETY: guaranteed by the caller: the buffer has the given size, or is null and the
            // message is discarded.
            let _ = unsafe { write_words(log.place, log.room, &words) };
            error
        })?;
        Ok(handle(MODULES.insert(context.space.number, Module { code })))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(raw: CUmodule) -> CUresult {
    answer(current().and_then(|_| {
        MODULES.remove(raw.addr())?;
        FUNCTIONS.drop_where(|function| function.module == raw.addr());
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    place: *mut CUfunction,
    raw: CUmodule,
    name: *const c_char,
) -> CUresult {
    let find = || {
        let context = current()?;
        let module = MODULES.get(raw.addr())?;
        if name.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: guaranteed by the caller: it ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str();
        let found = name.ok().and_then(|name| module.code.kernel(name));
        let kernel = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?.map_err(|words| {
            eprintln!("emulator: {words}");
            CUresult::CUDA_ERROR_INVALID_PTX
        })?;
        let is_same =
            |known: &Function| known.module == raw.addr() && known.kernel.name() == kernel.name();
        let number = FUNCTIONS.find(is_same).unwrap_or_else(|| {
            let space = context.space.number;
            FUNCTIONS.insert(space, Function::new(raw.addr(), space, Arc::clone(&kernel)))
        });
        Ok(handle(number))
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    raw: CUfunction,
    attribute: c_uint,
    value: c_int,
) -> CUresult {
    const SHARED: c_uint =
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_uint;
    const CARVEOUT: c_uint =
        CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as c_uint;
    answer(current().and_then(|_| {
        let function = FUNCTIONS.get(raw.addr())?;
        match attribute {
            SHARED => function.allow_shared(value),
            // A hint, without effect here.
            CARVEOUT if (-1..=100).contains(&value) => Ok(()),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }))
}
