//! Actions that the agent can request: a closed list, checked before anything moves.

use std::time::Duration;

use serde_json::Value;

use crate::house::{self, Point};

/// The longest pause that can be ordered.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// An action of the robot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Drive to a place.
    Go(&'static str, Point),
    /// Stop.
    Stop,
    /// Stop for this duration, then continue.
    Wait(Duration),
    /// Speak without moving.
    Say,
}

/// A checked action, and the robot's spoken answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub action: Action,
    pub say: String,
}

impl Answer {
    /// Reads the first JSON object in `reply`: `{"action":…,"target":…,"say":…}`.
    ///
    /// # Errors
    /// The reason why the robot refuses.
    pub fn parse(reply: &str) -> Result<Self, String> {
        let start = reply.find('{').ok_or("no JSON in the reply")?;
        let json = reply.get(start..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
        let value = values.next().and_then(Result::ok).ok_or("broken JSON in the reply")?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let action = action(text("action"), text("target"))?;
        Ok(Self { action, say: text("say").to_owned() })
    }
}

/// The closed list.
fn action(name: &str, target: &str) -> Result<Action, String> {
    match name {
        "goto" | "deliver" | "clean" => place(target),
        "charge" => place("dock"),
        "wait" => pause(target).map(Action::Wait),
        "stop" => Ok(Action::Stop),
        "say" | "refuse" => Ok(Action::Say),
        "" => Err("no action in the JSON".to_owned()),
        // This robot has no arm to fetch with and no camera to follow with, whether or not its
        // agent claims them.
        other => Err(format!("I cannot do {other:?}")),
    }
}

fn place(name: &str) -> Result<Action, String> {
    let (name, point) =
        house::place(name).ok_or_else(|| format!("there is no {name:?} in this house"))?;
    Ok(Action::Go(name, point))
}

/// A duration in words: `five seconds`, `2 minutes`.
fn pause(words: &str) -> Result<Duration, String> {
    const NUMBERS: [&str; 13] = [
        "a", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
        "eleven", "twelve",
    ];
    let no_pause = || format!("{words:?} is no pause of up to {} s", PAUSE_MAX.as_secs());
    let (number, unit) = words.split_once(' ').ok_or_else(no_pause)?;
    let named = NUMBERS.iter().position(|name| *name == number).map(|at| at.max(1) as u64);
    let count = named.or_else(|| number.parse().ok()).ok_or_else(no_pause)?;
    let seconds = match unit.trim_end_matches(['s', '.']) {
        "second" | "moment" => count,
        "minute" => count.saturating_mul(60),
        _ => return Err(no_pause()),
    };
    Some(Duration::from_secs(seconds)).filter(|pause| *pause <= PAUSE_MAX).ok_or_else(no_pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action_of(reply: &str) -> Result<Action, String> {
        Answer::parse(reply).map(|answer| answer.action)
    }

    #[test]
    fn listed_actions_are_accepted() {
        let kitchen = action_of(r#"Sure! {"action":"goto","target":"Kitchen","say":"Okay."} done"#);
        assert!(matches!(kitchen, Ok(Action::Go("kitchen", _))));
        let cup = action_of(r#"{"action":"deliver","item":"cup","target":"dock","say":"Okay."}"#);
        assert!(matches!(cup, Ok(Action::Go("dock", _))));
        assert_eq!(action_of(r#"{"action":"stop","target":"here"}"#), Ok(Action::Stop));
        for (words, seconds) in [("five seconds", 5), ("2 minutes", 120), ("a moment", 1)] {
            let reply = format!(r#"{{"action":"wait","target":"{words}"}}"#);
            assert_eq!(action_of(&reply), Ok(Action::Wait(Duration::from_secs(seconds))));
        }
    }

    #[test]
    fn other_actions_are_refused() {
        for refused in [
            "",
            "I cannot.",
            r#"{"action":"goto","target":"moon"}"#,
            r#"{"action":"goto"}"#,
            r#"{"action":"wait","target":"99999999999999999999 seconds"}"#,
            r#"{"action":"wait","target":"18446744073709551615 minutes"}"#,
            r#"{"action":"wait","target":"forever"}"#,
            r#"{"action":"self_destruct"}"#,
            r#"{"action":["goto"],"target":"dock"}"#,
            r#"{"action":"#,
            "[]",
        ] {
            assert!(Answer::parse(refused).is_err(), "{refused}");
        }
    }
}
