use std::collections::HashMap;

use walla_device::{EventId, HostId, StreamId};

use super::plan::FaultPlan;

/// Completion times, in microseconds of the plan's clock: never earlier than on the wrapped device.
///
/// A stream has completed its recorded work when its latest record is due. Records on one stream
/// are due in order, and a wait orders the stream after the event. A host buffer with a copy is in
/// flight until a later record on the same stream is due; without such a record the completion
/// cannot be observed.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    records: u64,
    streams: HashMap<StreamId, u64>,
    events: HashMap<EventId, u64>,
    hosts: HashMap<HostId, Copying>,
}

/// A host buffer's latest copy.
#[derive(Clone, Copy, Debug)]
enum Copying {
    /// No record has followed it on its stream.
    Unrecorded(StreamId),
    /// Complete at this time.
    Until(u64),
}

/// Later than any clock.
const NEVER: u64 = u64::MAX;

impl Timeline {
    pub(super) fn copy(&mut self, stream: StreamId, host: HostId) {
        self.hosts.insert(host, Copying::Unrecorded(stream));
    }

    pub(super) fn record(&mut self, stream: StreamId, event: EventId, plan: &FaultPlan) {
        let delay = plan.delay(self.records);
        self.records += 1;
        let due = delay.map_or(NEVER, |delay| plan.clock.now_micros().saturating_add(delay));
        let of_stream = self.streams.entry(stream).or_default();
        *of_stream = due.max(*of_stream);
        let due = *of_stream;
        self.events.insert(event, due);
        for copying in self.hosts.values_mut() {
            if matches!(copying, Copying::Unrecorded(on) if *on == stream) {
                *copying = Copying::Until(due);
            }
        }
    }

    pub(super) fn wait(&mut self, stream: StreamId, event: EventId) {
        let due = self.events.get(&event).copied().unwrap_or(0);
        let of_stream = self.streams.entry(stream).or_default();
        *of_stream = due.max(*of_stream);
    }

    pub(super) fn is_complete(&self, event: EventId, now_micros: u64) -> bool {
        self.events.get(&event).is_none_or(|&due| due <= now_micros)
    }

    pub(super) fn is_in_flight(&self, host: HostId, now_micros: u64) -> bool {
        match self.hosts.get(&host) {
            None => false,
            Some(Copying::Unrecorded(_)) => true,
            Some(Copying::Until(due)) => *due > now_micros,
        }
    }

    /// Completes all work. Returns its completion time; `None`: never.
    pub(super) fn synchronize(&mut self) -> Option<u64> {
        let last = self.streams.values().copied().max().unwrap_or(0);
        if last == NEVER {
            return None;
        }
        self.hosts.clear();
        Some(last)
    }
}
