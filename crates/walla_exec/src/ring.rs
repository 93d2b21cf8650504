//! The ring of steps in flight. A slot holds a pinned step block, a result block and two events.
//! The result block is pinned memory of the slot, or a part of the mapped memory that programs
//! write.
//!
//! The device owns a slot from `submit` until its `copied` event completes; the host owns it until
//! `release`. Steps acquire and release slots in order, so two counters describe the whole state.

use walla_device::step::{StepHeader, StepLayout};
use walla_device::{Device, DeviceError, EventId, HostId};

use crate::error::ExecError;
use crate::masks::StepMask;

/// Counts of a step, and its requests for logits and masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepShape<'a> {
    /// Rows filled.
    pub rows: u32,
    /// Outputs filled.
    pub outputs: u32,
    /// Page tables filled.
    pub sequences: u32,
    /// Biases filled.
    pub biases: u32,
    /// Whether some output requests candidates.
    pub candidates: bool,
    /// Outputs whose logits are copied to the host.
    pub logits: &'a [u32],
    /// Masks of the step; an output refers to one by its place plus one.
    pub masks: &'a [StepMask],
}

impl StepShape<'_> {
    pub(crate) fn header(&self, step: u64, ring_slot: u32) -> StepHeader {
        StepHeader {
            step,
            rows: self.rows,
            outputs: self.outputs,
            sequences: self.sequences,
            biases: self.biases,
            ring_slot,
            masks: self.masks.iter().map(|mask| mask.place + 1).max().unwrap_or(0),
            reserved: [0; 8],
        }
    }
}

/// A step whose results can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Its number, from [`Executor::submit_ubatch`](crate::Executor::submit_ubatch).
    pub step: u64,
    /// Rows that it had.
    pub rows: u32,
    /// Outputs that it had.
    pub outputs: u32,
    /// When its program was enqueued, by [`walla_trace::now_nanos`]; 0 without a trace listener.
    pub launched_nanos: u64,
    /// Rows of logits that were copied to the host.
    pub logits_rows: u32,
    pub(crate) slot: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSlot {
    pub step: HostId,
    /// Host memory and offset of its result block.
    pub results: (HostId, usize),
    pub logits: HostId,
    pub masks: Option<HostId>,
    pub computed: EventId,
    pub copied: EventId,
    /// Its latest step.
    latest: Completed,
}

#[derive(Debug)]
pub(crate) struct Ring {
    slots: Vec<RingSlot>,
    /// Steps submitted so far: also the number of the next one.
    submitted: u64,
    /// Steps released so far.
    released: u64,
}

impl Ring {
    pub fn create(
        device: &mut dyn Device,
        slots: u32,
        layout: &StepLayout,
        logits_bytes: usize,
        masks_bytes: usize,
        mapped: Option<HostId>,
    ) -> Result<Self, DeviceError> {
        let slot = |index: u32| {
            Ok(RingSlot {
                step: device.create_host("step block", layout.bytes())?,
                results: match mapped {
                    Some(ring) => (ring, index as usize * layout.result_bytes()),
                    None => (device.create_host("results", layout.result_bytes())?, 0),
                },
                logits: device.create_host("logits", logits_bytes.max(64))?,
                masks: match masks_bytes {
                    0 => None,
                    bytes => Some(device.create_host("masks", bytes)?),
                },
                computed: device.create_event()?,
                copied: device.create_event()?,
                latest: Completed::default(),
            })
        };
        let slots = (0..slots).map(slot).collect::<Result<_, DeviceError>>()?;
        Ok(Self { slots, submitted: 0, released: 0 })
    }

    pub fn in_flight(&self) -> u32 {
        (self.submitted - self.released) as u32
    }

    pub fn has_room(&self) -> bool {
        (self.in_flight() as usize) < self.slots.len()
    }

    /// Number and slot of the next step.
    pub fn next(&self) -> Result<(u64, u32), ExecError> {
        if !self.has_room() {
            return Err(ExecError::RingFull { in_flight: self.in_flight() });
        }
        Ok((self.submitted, self.index(self.submitted)))
    }

    fn index(&self, step: u64) -> u32 {
        (step % self.slots.len() as u64) as u32
    }

    pub fn slot(&self, index: u32) -> RingSlot {
        self.slots[index as usize]
    }

    pub fn launched(&mut self, step: u64, shape: &StepShape<'_>, launched_nanos: u64) {
        debug_assert_eq!(step, self.submitted, "steps are submitted in order");
        let slot = self.index(step);
        let StepShape { rows, outputs, logits, .. } = *shape;
        let logits_rows = logits.len() as u32;
        self.slots[slot as usize].latest =
            Completed { step, rows, outputs, launched_nanos, logits_rows, slot };
        self.submitted += 1;
    }

    /// The copy event of the previous step, if it copies logits and may still be in flight.
    pub fn latest_logits_copy(&self) -> Option<EventId> {
        if self.in_flight() == 0 {
            return None;
        }
        let slot = self.slot(self.index(self.submitted - 1));
        (slot.latest.logits_rows > 0).then_some(slot.copied)
    }

    /// The oldest step in flight and its copy event.
    pub fn oldest(&self) -> Option<(Completed, EventId)> {
        if self.in_flight() == 0 {
            return None;
        }
        let slot = self.slot(self.index(self.released));
        Some((slot.latest, slot.copied))
    }

    pub fn release(&mut self, completed: Completed) {
        debug_assert_eq!(completed.step, self.released, "steps are released in order");
        // A step that is released twice must not free the slot of the next one.
        if completed.step == self.released && self.in_flight() > 0 {
            self.released += 1;
        }
    }
}
