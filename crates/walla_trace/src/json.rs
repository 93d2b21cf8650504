//! The subset of the Trace Event Format that Perfetto and `chrome://tracing` need: an array of
//! objects, one per span, two per span of a reply.
//!
//! Source: "Trace Event Format" (Google), JSON array format: complete events (`"ph":"X"`,
//! microseconds), metadata (`"ph":"M"`), and nestable async events (`"ph":"b"`, `"ph":"e"`) for
//! spans of replies, because replies overlap: events with the same `id` nest. The closing bracket
//! is optional in this format, so a truncated file can still be read.

use std::io::{self, Write};

use crate::queue::{Record, ReplyTag};

/// All tracks belong to one process.
const PID: u32 = 1;

/// Number of track ids reserved per thread.
const TRACKS_PER_LANE: u32 = 8;

/// Maximum length of one record, in bytes. It limits the file's size without counting bytes.
pub(crate) fn max_bytes(record: &Record) -> u64 {
    // A span of a reply is two events.
    if record.reply.is_some() { 320 } else { 256 }
}

/// First bytes of every file that [`Events`] writes. They identify a trace.
pub(crate) const BEGINNING: &str =
    "[\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"walla\"}}";

/// Writes events in sequence.
pub(crate) struct Events<W> {
    out: W,
    /// Tracks whose name has been written.
    named: Vec<u32>,
    is_first: bool,
}

impl<W: Write> Events<W> {
    pub fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(b"[")?;
        let mut events = Self { out, named: Vec::new(), is_first: true };
        events.metadata("process_name", 0, "\"name\":\"walla\"")?;
        Ok(events)
    }

    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        if let Some(reply) = record.reply {
            return self.record_of_reply(record, reply);
        }
        let tid = tid(record);
        if !self.named.contains(&tid) {
            self.named.push(tid);
            self.name(tid, record)?;
        }
        self.separate()?;
        let nanos = record.end_nanos.saturating_sub(record.begin_nanos);
        write!(
            self.out,
            "{{\"ph\":\"X\",\"pid\":{PID},\"tid\":{tid},\"name\":\"{}\",\"ts\":{},\"dur\":{}",
            Escaped(record.name),
            Micros(record.begin_nanos),
            Micros(nanos)
        )?;
        if let Some(step) = record.step {
            write!(self.out, ",\"args\":{{\"step\":{step},\"rows\":{}}}", record.rows)?;
        }
        self.out.write_all(b"}")
    }

    /// Writes begin and end of a span of a reply. Reply ids are unique within an engine, and the
    /// lane is the thread of the engine.
    fn record_of_reply(&mut self, record: &Record, reply: ReplyTag) -> io::Result<()> {
        let ReplyTag { agent, reply_id, ends } = reply;
        let events = [("b", record.begin_nanos), ("e", record.end_nanos)];
        for ((ph, nanos), _) in events.into_iter().zip(ends).filter(|(_, is_written)| *is_written) {
            self.separate()?;
            write!(
                self.out,
                "{{\"ph\":\"{ph}\",\"cat\":\"reply\",\"id\":\"{}.{reply_id}\",\"pid\":{PID},\"tid\":0,\"name\":\"{}\",\"ts\":{}",
                record.lane,
                Escaped(record.name),
                Micros(nanos)
            )?;
            if ph == "b" {
                write!(self.out, ",\"args\":{{\"agent\":{agent}}}")?;
            }
            self.out.write_all(b"}")?;
        }
        Ok(())
    }

    /// Writes a count that applies to the whole file.
    pub fn count(&mut self, what: &str, count: u64) -> io::Result<()> {
        self.metadata(what, 0, &format!("\"count\":{count}"))
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    pub fn end(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]\n")?;
        self.out.flush()
    }

    /// Writes a track's name and sort index: the host on top, then thread, device and copies of
    /// each engine.
    fn name(&mut self, tid: u32, record: &Record) -> io::Result<()> {
        let name = record.track.name();
        self.metadata("thread_name", tid, &format!("\"name\":\"{name}\""))?;
        self.metadata("thread_sort_index", tid, &format!("\"sort_index\":{tid}"))
    }

    fn metadata(&mut self, what: &str, tid: u32, args: &str) -> io::Result<()> {
        self.separate()?;
        write!(
            self.out,
            "{{\"ph\":\"M\",\"pid\":{PID},\"tid\":{tid},\"name\":\"{what}\",\"args\":{{{args}}}}}"
        )
    }

    fn separate(&mut self) -> io::Result<()> {
        let is_first = std::mem::take(&mut self.is_first);
        self.out.write_all(if is_first { b"\n" } else { b",\n" })
    }
}

fn tid(record: &Record) -> u32 {
    record.lane * TRACKS_PER_LANE + record.track as u32
}

/// Nanoseconds printed as exact microseconds. A double would lose precision after some days.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// Maximum length of a name in the file, in bytes.
const MAX_NAME_BYTES: usize = 80;

/// A name given by the host, escaped for a JSON string and cut to [`MAX_NAME_BYTES`].
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = 0;
        for c in self.0.chars() {
            let is_escaped = matches!(c, '"' | '\\');
            bytes += c.len_utf8() + usize::from(is_escaped);
            if bytes > MAX_NAME_BYTES {
                break;
            }
            match c {
                c if is_escaped => write!(f, "\\{c}")?,
                c if c.is_control() => f.write_str("?")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track::Track;

    #[test]
    fn output_is_valid_json() {
        let mut bytes = Vec::new();
        let mut events = Events::begin(&mut bytes).unwrap();
        let record =
            Record { begin_nanos: 1_234_567, ..Record::new("a \"b\"\\\n", Track::Host, 0..0) };
        events.record(&Record { end_nanos: 2_000_001, step: Some(7), rows: 3, ..record }).unwrap();
        events.count("spans_lost", 2).unwrap();
        events.end().unwrap();
        let events: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let span = events.as_array().unwrap().iter().find(|event| event["ph"] == "X").unwrap();
        assert_eq!(span["name"], "a \"b\"\\?");
        assert_eq!((span["ts"].as_f64(), span["dur"].as_f64()), (Some(1_234.567), Some(765.434)));
        assert_eq!(
            (span["args"]["step"].as_u64(), span["args"]["rows"].as_u64()),
            (Some(7), Some(3))
        );
        assert_eq!(events.as_array().unwrap().last().unwrap()["args"]["count"], 2);
    }

    #[test]
    fn spans_of_a_reply_are_async_events_of_its_agent() {
        let mut bytes = Vec::new();
        let mut events = Events::begin(&mut bytes).unwrap();
        let reply = Some(ReplyTag { agent: 5, reply_id: 9, ends: [true; 2] });
        let record = Record {
            name: "prefill",
            lane: 2,
            begin_nanos: 1_000,
            reply,
            ..Record::new("", Track::Host, 0..0)
        };
        events.record(&Record { end_nanos: 3_500, ..record }).unwrap();
        events.end().unwrap();
        let events: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let [.., begin, end] = events.as_array().unwrap().as_slice() else { panic!("{events}") };
        for (event, ph, ts) in [(begin, "b", 1.0), (end, "e", 3.5)] {
            assert_eq!((&event["ph"], event["ts"].as_f64()), (&ph.into(), Some(ts)));
            assert_eq!((&event["id"], &event["name"]), (&"2.9".into(), &"prefill".into()));
        }
        assert_eq!(begin["args"]["agent"], 5);
    }

    #[test]
    fn every_file_has_the_same_header() {
        let mut bytes = Vec::new();
        Events::begin(&mut bytes).unwrap();
        assert_eq!(str::from_utf8(&bytes), Ok(BEGINNING));
    }

    #[test]
    fn no_record_is_longer_than_its_bound() {
        for name in ["\"", "a", "é", "\u{1f600}", "a\u{1f600}", "\u{85}"] {
            let mut bytes = Vec::new();
            let mut events = Events::begin(&mut bytes).unwrap();
            let name: &str = Box::leak(name.repeat(100).into_boxed_str());
            let begin_nanos = u64::MAX - 1;
            let record = Record { begin_nanos, ..Record::new(name, Track::Host, 0..0) };
            let record = Record { end_nanos: u64::MAX, step: Some(u64::MAX), ..record };
            let record = Record { rows: u32::MAX, lane: 1 << 28, ..record };
            events.record(&record).unwrap();
            let before = events.out.len();
            events.record(&record).unwrap();
            let written = events.out.len() - before;
            assert!(written as u64 <= max_bytes(&record), "{written} bytes");
        }
        for name in crate::reply::NAMES {
            let mut bytes = Vec::new();
            let mut events = Events::begin(&mut bytes).unwrap();
            let before = events.out.len();
            let reply = Some(ReplyTag { agent: u64::MAX, reply_id: u64::MAX, ends: [true; 2] });
            let record = Record {
                name,
                begin_nanos: u64::MAX - 1,
                reply,
                ..Record::new("", Track::Host, 0..0)
            };
            events.record(&Record { end_nanos: u64::MAX, lane: u32::MAX, ..record }).unwrap();
            let written = events.out.len() - before;
            assert!(written as u64 <= max_bytes(&record), "{name}: {written} bytes");
        }
    }
}
