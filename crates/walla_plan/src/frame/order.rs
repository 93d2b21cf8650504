use walla_types::SeqId;

use super::PlanRequest;

/// Sequences ordered by key, sorted lazily: with ten thousand agents a frame serves about a
/// hundred.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// Smallest first. The low 32 bits are the sequence, so keys are distinct and the order is
    /// total.
    keys: Vec<u128>,
    /// Length of the sorted prefix of `keys`.
    sorted: usize,
}

/// Keys sorted first. Each further sort doubles the sorted prefix.
const SORTED_FIRST: usize = 256;

impl Order {
    pub(super) fn with_capacity(max_sequences: usize) -> Self {
        Self { keys: Vec::with_capacity(max_sequences), sorted: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.sorted = 0;
    }

    pub(super) fn push(&mut self, key: u128) {
        self.keys.push(key);
    }

    /// The sequence at a rank.
    pub(super) fn get(&mut self, place: usize) -> Option<SeqId> {
        if place >= self.keys.len() {
            return None;
        }
        while place >= self.sorted {
            let rest = &mut self.keys[self.sorted..];
            let more = self.sorted.max(SORTED_FIRST).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable(more);
            }
            rest[..more].sort_unstable();
            self.sorted += more;
        }
        Some(SeqId(self.keys[place] as u32)) // the low 32 bits
    }
}

/// By priority, then lateness, then waiting time.
pub(super) fn by_priority(request: &PlanRequest) -> u128 {
    let wait = u32::MAX - request.waited_frames;
    pack([high_first(request.priority), late_first(request), wait, request.seq.0])
}

/// By waiting time, then priority, then lateness.
pub(super) fn by_wait(request: &PlanRequest) -> u128 {
    let wait = u32::MAX - request.waited_frames;
    pack([wait, high_first(request.priority), late_first(request), request.seq.0])
}

fn pack(parts: [u32; 4]) -> u128 {
    parts.into_iter().fold(0, |key, part| key << 32 | u128::from(part))
}

/// Maps the highest priority to the lowest number.
fn high_first(priority: i32) -> u32 {
    !(priority.cast_unsigned() ^ 0x8000_0000)
}

/// Maps the latest agent to the lowest number: makes the float's bits monotonic, then inverts them.
fn late_first(request: &PlanRequest) -> u32 {
    let bits = (request.lateness() + 0.0).to_bits(); // + 0.0 turns −0 into 0
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::NextWork;

    fn request(priority: i32, due: f32, waited_frames: u32, seq: u32) -> PlanRequest {
        let base = PlanRequest::new(SeqId(seq), NextWork::Decoding);
        PlanRequest { priority, due: Some(due), waited_frames, ..base }
    }

    #[test]
    fn keys_follow_priority_then_lateness_then_wait_then_id() {
        let in_order = [
            request(i32::MAX, -5.0, 0, 9),
            request(7, f32::INFINITY, 0, 9),
            request(7, 2.5, 0, 9),
            request(7, 1e-40, 0, 9),
            request(7, 0.0, 3, 9),
            request(7, -0.0, 2, 4),
            request(7, f32::NAN, 2, 5),
            request(7, -1e-40, 9, 0),
            request(7, f32::NEG_INFINITY, 9, 0),
            request(0, 9.0, u32::MAX, 0),
            request(-1, 9.0, 9, 0),
            request(i32::MIN, 9.0, 9, 0),
        ];
        assert!(in_order.windows(2).all(|two| by_priority(&two[0]) < by_priority(&two[1])));
    }

    #[test]
    fn an_order_is_sorted_at_every_depth() {
        let mut order = Order::with_capacity(5_000);
        for index in 0..5_000u32 {
            order.push(u128::from(index.wrapping_mul(2_654_435_761)) << 32 | u128::from(index));
        }
        let mut expected = order.keys.clone();
        expected.sort_unstable();
        for (place, key) in expected.into_iter().enumerate() {
            assert_eq!(order.get(place), Some(SeqId(key as u32)));
        }
        assert_eq!(order.get(5_000), None);
    }
}
