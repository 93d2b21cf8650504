//! Spans of a reply up to its first token.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::listeners::{FILE, LISTENERS};
use crate::queue::{self, Record, ReplyTag};
use crate::track::Track;

/// Names of all spans of a reply.
#[cfg(test)]
pub(crate) const NAMES: [&str; 5] = ["first token", "waiting", "encoding", "prefill", "decode"];

/// Times of an ask up to its first token, known at the token. All by
/// [`now_nanos`](crate::now_nanos), in this order, without pauses: a reply that was paused seems to
/// have arrived later.
#[derive(Clone, Debug)]
pub struct FirstToken {
    /// Number of the agent.
    pub agent: u64,
    /// Number of the reply, unique within its engine.
    pub reply_id: u64,
    /// The ask arrived at the engine.
    pub arrived_nanos: u64,
    /// Begin and end of the encoding of the prompt.
    pub encoding_nanos: Range<u64>,
    /// Launch of the step with the first prompt token that was not cached, and of the step with the
    /// last one.
    pub prefill_nanos: Range<u64>,
    /// The first token was sampled.
    pub token_nanos: u64,
}

/// Reports the first token of a reply: a span `first token` that contains `waiting`, `encoding`,
/// `waiting` (for the device), `prefill` and `decode`. Spans without duration are left out.
///
/// Call it on the thread that owns the device. Allocates nothing.
pub fn first_token(times: &FirstToken) {
    let FirstToken { agent, reply_id, arrived_nanos, token_nanos, .. } = *times;
    let (encoding, prefill) = (&times.encoding_nanos, &times.prefill_nanos);
    let spans = [
        // Events at the same time nest in the order of the file.
        ("first token", arrived_nanos..token_nanos, [true, false]),
        ("waiting", arrived_nanos..encoding.start, [true; 2]),
        ("encoding", encoding.clone(), [true; 2]),
        ("waiting", encoding.end..prefill.start, [true; 2]),
        ("prefill", prefill.clone(), [true; 2]),
        ("decode", prefill.end..token_nanos, [true; 2]),
        ("first token", arrived_nanos..token_nanos, [false, true]),
    ];
    let is_filed = LISTENERS.load(Ordering::Relaxed) & FILE != 0;
    for (name, nanos, ends) in spans {
        if nanos.is_empty() {
            continue;
        }
        let (begin_nanos, end_nanos) = (nanos.start, nanos.end);
        if is_filed {
            // The track selects the engine; each reply has a separate row.
            let (track, reply) = (Track::DeviceThread, Some(ReplyTag { agent, reply_id, ends }));
            queue::push(Record { reply, ..Record::new(name, track, nanos) });
        }
        if ends[1] {
            tracing::trace!(target: "walla::reply", name, agent, reply_id, begin_nanos, end_nanos, "span");
        }
    }
}
