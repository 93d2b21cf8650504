//! Properties of the emulated devices.

use std::env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUresult;

use super::{MAX_DEVICES, Outcome};

/// Shared memory per block without opt-in, on every chip.
pub(super) const SHARED_BYTES: u32 = 48 << 10;

/// Properties of a device, and the number of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Compute capability.
    pub(super) capability: (u32, u32),
    /// Number of identical devices.
    pub(super) devices: u32,
    pub(super) multiprocessors: u32,
    pub(super) memory_bytes: u64,
    /// Every launch whose number is a multiple of this fails; 0: none fails.
    pub(super) refused_launches: u32,
    /// Maximum shared memory per block with opt-in, and shared memory per multiprocessor.
    pub(super) shared_bytes_optin: u32,
    pub(super) shared_bytes_per_multiprocessor: u32,
    pub(super) threads_per_multiprocessor: u32,
    pub(super) l2_bytes: u32,
    /// A part of the multiprocessors is a multiple of this, and at least
    /// [`part_min`](Self::part_min).
    pub(super) part_step: u32,
    pub(super) part_min: u32,
}

static FACTS: OnceLock<Facts> = OnceLock::new();

/// The process is exiting: the driver has shut down.
static IS_SHUT_DOWN: AtomicBool = AtomicBool::new(false);

/// Fails once the driver has shut down, as the real driver does in the exit handlers of a process.
///
/// # Errors
/// `CUDA_ERROR_DEINITIALIZED`.
pub(super) fn alive() -> Outcome {
    let is_shut_down = IS_SHUT_DOWN.load(Ordering::Acquire);
    if is_shut_down { Err(CUresult::CUDA_ERROR_DEINITIALIZED) } else { Ok(()) }
}

extern "C" fn shut_down() {
    IS_SHUT_DOWN.store(true, Ordering::Release);
}

/// The device, once `cuInit` has succeeded.
pub(super) fn facts() -> Outcome<&'static Facts> {
    alive()?;
    FACTS.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

/// Reads the environment at the first call.
///
/// # Errors
/// A description of the variable that cannot be used.
pub(super) fn initialize() -> Result<(), String> {
    if FACTS.get().is_none() {
        let facts = from_environment(|name| env::var(name).ok())?;
        // If two threads run this at once, both have read the same values.
        if FACTS.set(facts).is_ok() {
            #[expect(
                unsafe_code,
                reason = "the C library calls the handler when the process exits"
            )]
            // SAFETY: the handler is a function that neither unwinds nor exits.
            let registered = unsafe { libc::atexit(shut_down) };
            if registered != 0 {
                return Err("no handler can be registered for the end of the process".to_owned());
            }
        }
    }
    Ok(())
}

/// - `WALLA_EMULATED_CAPABILITY`: 7.5, 8.0, 8.6, 8.9, 9.0 or 12.0. Default: 9.0.
/// - `WALLA_EMULATED_DEVICES`: 1 to 4. Default: 1.
/// - `WALLA_EMULATED_MULTIPROCESSORS`: 1 to 1,024. Default: 132, as on an H100.
/// - `WALLA_EMULATED_MEMORY_MIB`: 1 to 1,048,576. Default: 4,096, more than any test uses.
/// - `WALLA_EMULATED_REFUSED_LAUNCHES`: 1 to 1,048,576: every N-th kernel launch fails. Default:
///   none fails.
fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Facts, String> {
    let number = |name: &str, default: u32, max: u32| {
        let Some(text) = get(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("{name} is {text:?}, not a number from 1 to {max}"))
    };
    let capability = get("WALLA_EMULATED_CAPABILITY");
    let chip = chip(capability.as_deref().unwrap_or("9.0"));
    let chip =
        chip.ok_or("WALLA_EMULATED_CAPABILITY is none of 7.5, 8.0, 8.6, 8.9, 9.0 and 12.0")?;
    Ok(Facts {
        devices: number("WALLA_EMULATED_DEVICES", 1, MAX_DEVICES as u32)?,
        multiprocessors: number("WALLA_EMULATED_MULTIPROCESSORS", 132, 1024)?,
        memory_bytes: u64::from(number("WALLA_EMULATED_MEMORY_MIB", 4096, 1 << 20)?) << 20,
        refused_launches: number("WALLA_EMULATED_REFUSED_LAUNCHES", 0, 1 << 20)?,
        ..chip
    })
}

/// Properties that do not come from the environment, of a T4, an A100, an RTX 3090, an RTX 4090, an
/// H100, an RTX 5090. Source: the CUDA programming guide, "Compute Capabilities", and the chips'
/// data sheets; steps of parts: the driver API's `cuDevSmResourceSplitByCount`.
fn chip(capability: &str) -> Option<Facts> {
    let chip =
        |capability, shared_kib: u32, threads_per_multiprocessor, l2_mib: u32, (step, min)| Facts {
            capability,
            devices: 0,
            multiprocessors: 0,
            memory_bytes: 0,
            refused_launches: 0,
            // From 8.0 on the system reserves one KiB per block.
            shared_bytes_optin: (shared_kib - u32::from(capability >= (8, 0))) << 10,
            shared_bytes_per_multiprocessor: shared_kib << 10,
            threads_per_multiprocessor,
            l2_bytes: l2_mib << 20,
            part_step: step,
            part_min: min,
        };
    Some(match capability {
        "7.5" => chip((7, 5), 64, 1024, 4, (2, 2)),
        "8.0" => chip((8, 0), 164, 2048, 40, (2, 4)),
        "8.6" => chip((8, 6), 100, 1536, 6, (2, 4)),
        "8.9" => chip((8, 9), 100, 1536, 72, (2, 4)),
        "9.0" => chip((9, 0), 228, 2048, 50, (8, 8)),
        "12.0" => chip((12, 0), 100, 1536, 96, (8, 8)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Facts, String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        from_environment(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_default_device_is_an_h100_with_little_memory() {
        let facts = of(&[]).unwrap();
        assert_eq!((facts.capability, facts.multiprocessors), ((9, 0), 132));
        assert_eq!(facts.devices, 1);
        assert_eq!(facts.memory_bytes, 4 << 30);
    }

    #[test]
    fn variables_are_read_and_invalid_values_are_named() {
        let facts = of(&[
            ("WALLA_EMULATED_CAPABILITY", "7.5"),
            ("WALLA_EMULATED_MULTIPROCESSORS", "40"),
            ("WALLA_EMULATED_MEMORY_MIB", "64"),
        ]);
        let facts = facts.unwrap();
        assert_eq!((facts.capability, facts.multiprocessors), ((7, 5), 40));
        assert_eq!((facts.memory_bytes, facts.shared_bytes_optin), (64 << 20, 64 << 10));
        let newest = of(&[("WALLA_EMULATED_CAPABILITY", "12.0")]).unwrap();
        assert_eq!((newest.capability, newest.shared_bytes_optin), ((12, 0), 99 << 10));
        for (name, value) in [
            ("WALLA_EMULATED_CAPABILITY", "8.7"),
            ("WALLA_EMULATED_DEVICES", "5"),
            ("WALLA_EMULATED_MULTIPROCESSORS", "0"),
            ("WALLA_EMULATED_MEMORY_MIB", "much"),
            ("WALLA_EMULATED_REFUSED_LAUNCHES", "0"),
        ] {
            let reason = of(&[(name, value)]).unwrap_err();
            assert!(reason.contains(name), "{reason}");
        }
    }
}
