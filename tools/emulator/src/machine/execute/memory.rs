//! Memory accesses, and the mbarriers in memory.

use super::each;
use crate::machine::access::{Bad, Place, place, read_bytes, write_bytes};
use crate::machine::kinds::{Atomic, Space};
use crate::machine::op::{Address, Few, Op, Value, Word};
use crate::machine::team::Site;
use crate::machine::tensor;
use crate::machine::warp::Warp;

/// An `mbarrier`. PTX does not specify its layout; here, from the lowest bit: pending arrivals (20
/// bits), arrivals per phase (20), pending bytes (23, signed), the phase.
#[derive(Clone, Copy)]
pub(super) struct Counted(pub(super) u64);

impl Counted {
    const BYTES_ZERO: u64 = 1 << 22;

    pub(super) fn new(count: u64) -> Self {
        Self(count | count << 20 | Self::BYTES_ZERO << 40)
    }

    pub(super) fn phase(self) -> u64 {
        self.0 >> 63
    }

    /// State after arrivals, and after bytes were expected or received; the phase ends when nothing
    /// is pending.
    fn after(self, arrivals: u64, bytes: i64) -> Self {
        let pending = (self.0 & 0xF_FFFF).wrapping_sub(arrivals) & 0xF_FFFF;
        let count = self.0 >> 20 & 0xF_FFFF;
        let awaited = (self.0 >> 40 & 0x7F_FFFF).wrapping_add_signed(bytes) & 0x7F_FFFF;
        if pending == 0 && awaited == Self::BYTES_ZERO {
            return Self(Self::new(count).0 | (self.phase() ^ 1) << 63);
        }
        Self(pending | count << 20 | awaited << 40 | self.phase() << 63)
    }
}

impl Warp {
    /// The address of each lane. A shared variable's name refers to the block's own window.
    #[inline(always)]
    pub(super) fn addresses(&self, address: Address, space: Space, site: &Site<'_>) -> [u64; 32] {
        let own = match address.base {
            Value::Word(Word::Number(_)) if space == Space::Shared => u64::from(site.window()),
            _ => 0,
        };
        let offset = own.wrapping_add_signed(address.offset);
        let base = self.value(address.base);
        let bits = if space == Space::Shared { 0xFFFF_FFFF } else { u64::MAX };
        tensor::lanes(|i| base[i].wrapping_add(offset) & bits)
    }

    /// Executes instructions that read or write memory.
    #[inline(always)]
    pub(super) fn memory(&mut self, op: &Op, lanes: u32, site: &mut Site<'_>) -> Result<(), Bad> {
        match *op {
            Op::Load { space, to, bytes, is_signed, from } => {
                let from = self.addresses(from, space, site);
                for (i, to) in (0_u64..).zip(to.iter()) {
                    let read =
                        self.read_lanes(space, &from, i * u64::from(bytes), bytes, lanes, site)?;
                    if is_signed {
                        let unused = 64 - 8 * bytes;
                        let widened =
                            |bits: u64| ((bits << unused).cast_signed() >> unused).cast_unsigned();
                        self.put_register(to, lanes, |i| widened(read[i]));
                    } else {
                        self.put_register(to, lanes, |i| read[i]);
                    }
                }
            }
            Op::Store { space, from, bytes, to } => {
                let to = self.addresses(to, space, site);
                for (i, from) in (0_u64..).zip(from.iter()) {
                    let from = self.value(from);
                    self.write_lanes(space, &to, i * u64::from(bytes), bytes, &from, lanes, site)?;
                }
            }
            Op::Atomic { op, space, is_long, to, at, with } => {
                let (at, with) = (self.addresses(at, space, site), self.value(with));
                let mut old = [0; 32];
                for lane in each(lanes) {
                    old[lane] = change(space, at[lane], is_long, op, with[lane], site)?;
                }
                if let Some(to) = to {
                    self.put_register(to, lanes, |i| old[i]);
                }
            }
            Op::LoadMatrix { is_transposed, to, from } => {
                let from = self.addresses(from, Space::Shared, site);
                for (i, to) in to.iter().enumerate() {
                    let mut matrix = [[0; 8]; 8];
                    for (row, address) in matrix.iter_mut().zip(&from[8 * i..]) {
                        let bytes = site.shared.row(*address)?;
                        for (half, pair) in row.iter_mut().zip(bytes.chunks_exact(2)) {
                            *half = u16::from_le_bytes([pair[0], pair[1]]);
                        }
                    }
                    self.words[to as usize] = tensor::spread(&matrix, is_transposed);
                }
            }
            Op::CopyAsync { to, from, bytes, given } => {
                let (to, from) = (
                    self.addresses(to, Space::Shared, site),
                    self.addresses(from, Space::Global, site),
                );
                let given = given.map_or([bytes; 32], |given| self.word(given));
                for lane in each(lanes) {
                    copy(to[lane], from[lane], bytes, given[lane].min(bytes), site)?;
                }
            }
            Op::CopyBulk { to, from, bytes, barrier } => {
                let (to, from) = (
                    self.addresses(to, Space::Shared, site),
                    self.addresses(from, Space::Global, site),
                );
                let (bytes, barrier) =
                    (self.word(bytes), self.addresses(barrier, Space::Shared, site));
                for lane in each(lanes) {
                    let misfit = [to[lane], from[lane], bytes[lane].into()]
                        .into_iter()
                        .find(|x| x % 16 != 0);
                    misfit.map_or(Ok(()), |x| Err(Bad::Alignment(x)))?;
                    copy(to[lane], from[lane], bytes[lane], bytes[lane], site)?;
                    count(barrier[lane], 0, -i64::from(bytes[lane]), site)?;
                }
            }
            Op::StoreAsync { to, from, barrier } => {
                self.store_async(to, from, barrier, lanes, site)?;
            }
            Op::BarrierInit { at, count } => {
                let (at, count) = (self.addresses(at, Space::Shared, site), self.word(count));
                for lane in each(lanes) {
                    site.shared.write(at[lane], 8, Counted::new(count[lane].into()).0)?;
                }
            }
            Op::BarrierArrive { at, expected } => {
                let (at, expected) = (self.addresses(at, Space::Shared, site), self.word(expected));
                for lane in each(lanes) {
                    count(at[lane], 1, expected[lane].into(), site)?;
                }
            }
            ref other => unreachable!("{other:?} is no access to memory"),
        }
        Ok(())
    }

    /// Reads one number per lane, at `offset` bytes from its address.
    #[inline(always)]
    pub(super) fn read_lanes(
        &self,
        space: Space,
        from: &[u64; 32],
        offset: u64,
        bytes: u32,
        lanes: u32,
        site: &Site<'_>,
    ) -> Result<[u64; 32], Bad> {
        // The width is a constant in each loop, and so is the state space in most.
        macro_rules! each_lane {
            ($read:expr) => {{
                let mut read = [0; 32];
                for lane in each(lanes) {
                    read[lane] = $read(from[lane].wrapping_add(offset), lane)?;
                }
                Ok(read)
            }};
        }
        match (space, bytes) {
            (Space::Global, 4) => each_lane!(|address, _| site.ranges.read(address, 4)),
            (Space::Shared, 4) => each_lane!(|address, _| site.shared.read(address, 4)),
            (Space::Param, _) => {
                let read = self.read(space, from[0].wrapping_add(offset), bytes, 0, site)?;
                if from.iter().all(|address| *address == from[0]) {
                    return Ok([read; 32]);
                }
                each_lane!(|address, lane| self.read(space, address, bytes, lane, site))
            }
            _ => each_lane!(|address, lane| self.read(space, address, bytes, lane, site)),
        }
    }

    /// Writes one number per lane.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "an access is that many things")]
    pub(super) fn write_lanes(
        &mut self,
        space: Space,
        to: &[u64; 32],
        offset: u64,
        bytes: u32,
        values: &[u64; 32],
        lanes: u32,
        site: &mut Site<'_>,
    ) -> Result<(), Bad> {
        for lane in each(lanes) {
            let (address, value) = (to[lane].wrapping_add(offset), values[lane]);
            match (space, bytes) {
                (Space::Global, 4) => site.ranges.write(address, 4, value)?,
                (Space::Shared, 4) => site.shared.write(address, 4, value)?,
                _ => self.write(space, address, bytes, value, lane, site)?,
            }
        }
        Ok(())
    }

    pub(super) fn store_async(
        &self,
        to: Address,
        from: Few<Word>,
        barrier: Address,
        lanes: u32,
        site: &mut Site<'_>,
    ) -> Result<(), Bad> {
        let to = self.addresses(to, Space::Shared, site);
        let barrier = self.addresses(barrier, Space::Shared, site);
        for (i, from) in (0_u64..).zip(from.iter()) {
            let from = self.word(from);
            for lane in each(lanes) {
                site.shared.write(to[lane] + 4 * i, 4, from[lane].into())?;
                count(barrier[lane], 0, -4, site)?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn read(
        &self,
        space: Space,
        address: u64,
        bytes: u32,
        lane: usize,
        site: &Site<'_>,
    ) -> Result<u64, Bad> {
        match space {
            Space::Global => site.ranges.read(address, bytes),
            Space::Shared => site.shared.read(address, bytes),
            Space::Local => {
                self.own(address, bytes, lane).map(|range| read_bytes(&self.local[range]))
            }
            Space::Param => {
                let start = address as usize;
                let range = start..start + bytes as usize;
                site.params.get(range).map(read_bytes).ok_or(Bad::Address(address))
            }
            Space::Generic => match place(address) {
                Place::Host(address) => site.ranges.read(address, bytes),
                Place::Shared(address) => site.shared.read(address, bytes),
                Place::Local(address) => self.read(Space::Local, address, bytes, lane, site),
            },
        }
    }

    #[inline(always)]
    pub(super) fn write(
        &mut self,
        space: Space,
        address: u64,
        bytes: u32,
        value: u64,
        lane: usize,
        site: &mut Site<'_>,
    ) -> Result<(), Bad> {
        match space {
            Space::Global => site.ranges.write(address, bytes, value),
            Space::Shared => site.shared.write(address, bytes, value),
            Space::Local => {
                let range = self.own(address, bytes, lane)?;
                write_bytes(&mut self.local[range], value);
                Ok(())
            }
            Space::Param => Err(Bad::Address(address)),
            Space::Generic => match place(address) {
                Place::Host(address) => site.ranges.write(address, bytes, value),
                Place::Shared(address) => site.shared.write(address, bytes, value),
                Place::Local(address) => {
                    self.write(Space::Local, address, bytes, value, lane, site)
                }
            },
        }
    }

    /// Local memory of a lane.
    pub(super) fn own(
        &self,
        address: u64,
        bytes: u32,
        lane: usize,
    ) -> Result<std::ops::Range<usize>, Bad> {
        let end = address.checked_add(bytes.into()).filter(|end| *end <= self.local_bytes as u64);
        end.ok_or(Bad::Address(address))?;
        let start = lane * self.local_bytes + address as usize;
        Ok(start..start + bytes as usize)
    }
}

fn change(
    space: Space,
    address: u64,
    is_long: bool,
    op: Atomic,
    with: u64,
    site: &mut Site<'_>,
) -> Result<u64, Bad> {
    match (space, place(address)) {
        (Space::Shared, _) => site.shared.change(address, is_long, op, with),
        (Space::Generic, Place::Shared(address)) => site.shared.change(address, is_long, op, with),
        (Space::Global | Space::Generic, Place::Host(address)) => {
            site.ranges.change(address, is_long, op, with)
        }
        _ => Err(Bad::Address(address)),
    }
}

/// Copies to shared memory: the first `given` of `bytes` are copied, the rest become zeros.
fn copy(to: u64, from: u64, bytes: u32, given: u32, site: &mut Site<'_>) -> Result<(), Bad> {
    if bytes.is_multiple_of(16) && given == bytes {
        for at in (0..u64::from(bytes)).step_by(16) {
            let low = site.ranges.read(from + at, 8)?;
            let high = site.ranges.read(from + at + 8, 8)?;
            let row = site.shared.row_mut(to + at)?;
            row[..8].copy_from_slice(&low.to_le_bytes());
            row[8..].copy_from_slice(&high.to_le_bytes());
        }
        return Ok(());
    }
    for at in 0..bytes {
        let here = u64::from(at);
        let value = if at < given { site.ranges.read(from + here, 1)? } else { 0 };
        site.shared.write(to + here, 1, value)?;
    }
    Ok(())
}

/// Counts arrivals and bytes at an mbarrier.
fn count(barrier: u64, arrivals: u64, bytes: i64, site: &mut Site<'_>) -> Result<(), Bad> {
    let now = Counted(site.shared.read(barrier, 8)?).after(arrivals, bytes);
    site.shared.write(barrier, 8, now.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_counts_arrivals_and_bytes() {
        let barrier = Counted::new(2).after(1, 64);
        assert_eq!(barrier.phase(), 0);
        let barrier = barrier.after(0, -96); // bytes may arrive before they are expected
        let barrier = barrier.after(1, 32);
        assert_eq!(barrier.phase(), 1);
        assert_eq!(barrier.after(2, 0).phase(), 0, "the next phase counts anew");
    }
}
