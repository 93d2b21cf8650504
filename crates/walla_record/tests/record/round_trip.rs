//! Every command and every event is read as it was written.

use std::sync::Arc;

use serde_json::json;
use walla_record::{End, Entry, Limits, Record, RecordError, Recording};
use walla_runtime::{
    ActionError, ActionSet, ActionSpec, Actions, AgentId, AgentSpec, CacheTicket, Call, CallId,
    Command, Event, ReplyError, ReplyEvent, ReplyId, ResultError,
};

use crate::generator::entries;
use crate::kit::Dice;

pub fn recording(seed: u64, count: usize) -> Recording {
    let entries: Vec<Entry> = entries(&mut Dice(seed), count);
    let micros = entries.last().map_or(0, |last| last.micros);
    Recording { entries, end: End::Complete, micros }
}

pub fn bytes(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    recording.write(&mut bytes).expect("a vector takes everything");
    bytes
}

#[test]
fn every_record_survives() {
    for seed in 0..60 {
        let written = recording(seed, 80);
        let bytes = bytes(&written);
        let read = Recording::read(&*bytes, Limits::default()).expect("a recording");
        for (read, written) in read.entries.iter().zip(&written.entries) {
            assert_eq!(read, written, "seed {seed}");
        }
        assert_eq!(read, written, "seed {seed}");
    }
}

#[test]
fn ends_survive() {
    for end in [End::Complete, End::CutOff, End::GivenUp("the disk is full".into())] {
        let written = Recording { end, ..recording(1, 5) };
        let read = Recording::read(&*bytes(&written), Limits::default()).expect("a recording");
        assert_eq!(read, written);
        assert_eq!(read.is_complete(), written.end == End::Complete);
    }
}

fn survives(record: Record) {
    let entries = vec![Entry { frame: 0, micros: 0, record }];
    let written = Recording { entries, end: End::Complete, micros: 0 };
    let read = Recording::read(&*bytes(&written), Limits::default()).expect("a recording");
    assert_eq!(read, written);
}

/// Errors of constraints, actions and templates have no form in a recording but their text.
#[test]
fn errors_without_a_form_survive_as_texts() {
    let (agent, reply_id) = (AgentId(0), ReplyId(1));
    let call = CallId { reply_id, index: 2 };
    let schema = Arc::new(ActionError::Refused { reason: "no schema".into() });
    let errors = [
        ReplyError::Result(ResultError::Repeated(call)),
        ReplyError::Actions(schema),
        ReplyError::Busy { waiting: 3 },
    ];
    for error in errors {
        let event =
            |error| Record::Event(Event { agent, reply_id, what: ReplyEvent::Failed(error) });
        let of = |record| Entry { frame: 0, micros: 0, record };
        // Others follow it as if it had been written at once.
        let entries = [error.clone(), ReplyError::UnknownAgent].map(|error| of(event(error)));
        let written = Recording { entries: entries.into(), end: End::Complete, micros: 0 };
        let read = Recording::read(&*bytes(&written), Limits::default()).expect("a recording");
        let expected = match error {
            ReplyError::Busy { .. } => error,
            error => ReplyError::Text(error.to_string()),
        };
        assert_eq!(read.entries[0], of(event(expected)));
        assert_eq!(read.entries[1], written.entries[1]);
    }
}

#[test]
fn a_command_without_a_form_is_refused() {
    let (ticket, _job) = CacheTicket::save("x");
    let command = Box::new(Command::CopyCache { agent: AgentId(0), ticket });
    let entries = vec![Entry { frame: 0, micros: 0, record: Record::Command(command) }];
    let written = Recording { entries, end: End::Complete, micros: 0 };
    assert!(matches!(written.write(Vec::new()), Err(RecordError::UnknownCommand)));
}

/// A replay compares the texts of calls.
#[test]
fn numbers_of_calls_survive() {
    let mut dice = Dice(5);
    for _ in 0..2_000 {
        let number = f64::from_bits(dice.roll());
        let number = if number.is_finite() { number } else { dice.roll() as f64 / 7.0 };
        let (reply_id, arguments) = (ReplyId(1), json!({"x": number}).to_string());
        let id = CallId { reply_id, index: 0 };
        let call = Call::new(id, "go", &arguments).expect("an object");
        let what = ReplyEvent::Call(Box::new(call));
        survives(Record::Event(Event { agent: AgentId(0), reply_id, what }));
    }
}

/// Enumerations without values are no schema, but in a value they are no enumeration.
#[test]
fn schemas_of_actions_survive() {
    let with = |property: serde_json::Value| {
        let properties = json!({"a": property});
        json!({"type": "object", "properties": properties, "required": ["a"]})
    };
    let schemas = [
        with(json!({"type": "object", "properties": {}, "default": {"enum": []}})),
        with(json!({"type": "integer", "default": {"properties": {"enum": []}}})),
        with(json!({"type": "object", "properties": {"default": {"enum": ["x"]}}})),
        json!({"type": "object", "properties": {"enum": {"enum": ["a"]}, "const": {"const": 1}}}),
        with(json!({"type": "number", "minimum": f64::from(0.1_f32)})),
    ];
    for schema in schemas {
        let action = ActionSpec::new("give", "Hands an item over.", &schema).expect("an action");
        // In a format that describes itself JSON is no text.
        let stored = serde_json::to_value(&action).expect("JSON");
        assert_eq!(stored["parameters"]["type"], "object");
        assert_eq!(serde_json::from_value::<ActionSpec>(stored).expect("an action"), action);
        let actions = Some(Actions::new(ActionSet::new([action]).expect("a set")));
        let spec = Box::new(AgentSpec { actions, ..AgentSpec::new("a smith") });
        survives(Record::Command(Box::new(Command::AddAgent { agent: AgentId(0), spec })));
    }
}
