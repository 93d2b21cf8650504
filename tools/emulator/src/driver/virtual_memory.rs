//! Virtual memory management: reserved addresses to which memory is mapped and unmapped.
//!
//! Pages are allocated when memory is mapped. Creation only counts the bytes. Memory can therefore
//! be mapped only once, and its contents are lost when it is unmapped.

use std::collections::BTreeMap;
use std::ffi::c_ulonglong;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};

use super::context::current;
use super::device::device;
use super::facts::facts;
use super::memory::Share;
use super::table::{NOBODY, Table};
use super::{Outcome, answer, give, memory_of, pages};

/// Granularity of sizes and addresses, as on current GPUs.
const GRANULARITY: u64 = 2 << 20;

/// Memory in use, until its handle is released and it is unmapped.
struct Physical {
    bytes: u64,
    share: Share,
}

static HANDLES: Table<Physical> = Table::new();

/// A reservation of addresses, with its mappings by start.
struct Reservation {
    end: u64,
    mappings: BTreeMap<u64, Mapping>,
}

struct Mapping {
    end: u64,
    memory: Arc<Physical>,
    is_usable: bool,
}

static RESERVATIONS: Mutex<BTreeMap<u64, Reservation>> = Mutex::new(BTreeMap::new());

fn reservations() -> MutexGuard<'static, BTreeMap<u64, Reservation>> {
    RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reservation {
    /// Whether mappings cover a range without gaps, and nothing outside it.
    fn is_mapped(&self, range: &Range<u64>) -> bool {
        let mut end = range.start;
        for (start, mapping) in self.mappings.range(range.clone()) {
            if *start != end {
                return false;
            }
            end = mapping.end;
        }
        end == range.end
    }

    /// Whether any mapping overlaps a range.
    fn touches(&self, range: &Range<u64>) -> bool {
        let before = self.mappings.range(..range.end).next_back();
        before.is_some_and(|(_, mapping)| mapping.end > range.start)
    }
}

/// Returns an error after a fault in the current context; these calls need no context.
fn ready() -> Outcome {
    match current() {
        Ok(_) | Err(CUresult::CUDA_ERROR_INVALID_CONTEXT) => facts().map(drop),
        Err(error) => Err(error),
    }
}

/// Converts to a range of whole pages.
fn range(start: CUdeviceptr, bytes: usize) -> Outcome<Range<u64>> {
    let end = start.checked_add(bytes as u64).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let is_whole = start.is_multiple_of(GRANULARITY) && end.is_multiple_of(GRANULARITY);
    if is_whole && bytes > 0 { Ok(start..end) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

/// The reservation that contains a range.
fn holder<'a>(
    reservations: &'a mut BTreeMap<u64, Reservation>,
    range: &Range<u64>,
) -> Outcome<&'a mut Reservation> {
    let before = reservations.range_mut(..=range.start).next_back();
    let holder = before.map(|(_, reservation)| reservation).filter(|r| range.end <= r.end);
    holder.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// The device of the requested memory. Returns an error for other kinds of memory.
fn check(wanted: &CUmemAllocationProp) -> Outcome<CUdevice> {
    let is_pinned = wanted.type_ == CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    if is_pinned { device_at(wanted.location) } else { Err(CUresult::CUDA_ERROR_INVALID_VALUE) }
}

fn device_at(location: CUmemLocation) -> Outcome<CUdevice> {
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    device(location.id).map(|_| location.id)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    place: *mut usize,
    wanted: *const CUmemAllocationProp,
    _option: u32,
) -> CUresult {
    let find = || {
        ready()?;
        // SAFETY: guaranteed by the caller: null, or a valid struct.
        check(unsafe { wanted.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)?;
        Ok(GRANULARITY as usize)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    place: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    _address: CUdeviceptr,
    _flags: c_ulonglong,
) -> CUresult {
    let find = || {
        ready()?;
        let wanted = range(0, bytes)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let alignment = alignment.max(GRANULARITY as usize);
        let found = pages::reserve(wanted.end as usize, alignment)?;
        let reservation = Reservation { end: found.end, mappings: BTreeMap::new() };
        reservations().insert(found.start, reservation);
        Ok(found.start)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(start: CUdeviceptr, bytes: usize) -> CUresult {
    answer(ready().and_then(|()| {
        let mut reservations = reservations();
        let is_whole = |r: &Reservation| r.end - start == bytes as u64 && r.mappings.is_empty();
        if !reservations.get(&start).is_some_and(is_whole) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        reservations.remove(&start);
        pages::release(start..start + bytes as u64);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    place: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    wanted: *const CUmemAllocationProp,
    _flags: c_ulonglong,
) -> CUresult {
    let find = || {
        ready()?;
        // SAFETY: guaranteed by the caller: null, or a valid struct.
        let device = check(unsafe { wanted.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)?;
        let bytes = range(0, bytes)?.end;
        let memory = Physical { bytes, share: Share::take(device, bytes)? };
        Ok(HANDLES.insert(NOBODY, memory) as u64)
    };
    // SAFETY: guaranteed by the caller.
    unsafe { give(place, find) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(raw: CUmemGenericAllocationHandle) -> CUresult {
    answer(ready().and_then(|()| HANDLES.remove(raw as usize).map(drop)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(
    start: CUdeviceptr,
    bytes: usize,
    offset: usize,
    raw: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    answer(ready().and_then(|()| {
        let range = range(start, bytes)?;
        let memory = HANDLES.get(raw as usize)?;
        let mut reservations = reservations();
        let is_same = |mapping: &Mapping| Arc::ptr_eq(&mapping.memory, &memory);
        let is_used = reservations.values().any(|r| r.mappings.values().any(is_same));
        if is_used || offset != 0 || memory.bytes != bytes as u64 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let reservation = holder(&mut reservations, &range)?;
        if reservation.touches(&range) {
            return Err(CUresult::CUDA_ERROR_ALREADY_MAPPED);
        }
        let mapping = Mapping { end: range.end, memory, is_usable: false };
        reservation.mappings.insert(start, mapping);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    start: CUdeviceptr,
    bytes: usize,
    wanted: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    answer(ready().and_then(|()| {
        // SAFETY: guaranteed by the caller: null, or `count` elements; one is read.
        let wanted = unsafe { wanted.as_ref() }.filter(|_| count == 1);
        let wanted = wanted.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if wanted.flags != CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let range = range(start, bytes)?;
        let mut reservations = reservations();
        let reservation = holder(&mut reservations, &range)?;
        let device = device_at(wanted.location)?;
        if !reservation.is_mapped(&range) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut mappings = reservation.mappings.range(range.clone());
        if mappings.any(|(_, mapping)| mapping.memory.share.device != device) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        pages::open(&range)?;
        let mappings = reservation.mappings.range_mut(range);
        for (start, mapping) in mappings.filter(|(_, mapping)| !mapping.is_usable) {
            mapping.is_usable = true;
            memory_of(device).add(*start..mapping.end);
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(start: CUdeviceptr, bytes: usize) -> CUresult {
    answer(ready().and_then(|()| {
        let range = range(start, bytes)?;
        let mut reservations = reservations();
        let reservation = holder(&mut reservations, &range)?;
        if !reservation.is_mapped(&range) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        for (start, mapping) in reservation.mappings.extract_if(range.clone(), |_, _| true) {
            if mapping.is_usable {
                memory_of(mapping.memory.share.device).remove(start);
            }
        }
        pages::close(&range);
        Ok(())
    }))
}
