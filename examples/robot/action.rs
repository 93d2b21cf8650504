//! What the agent may make the robot do: a closed list, checked before anything moves.

use serde_json::Value;

use crate::house;

/// The longest pause that anybody can order, in seconds.
const WAIT_SECONDS_MAX: f64 = 60.0;

/// Something that the base can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Drive to a place.
    Go(&'static str, house::Point),
    /// Stand still.
    Stop,
    /// Stand still for so many seconds, then go on.
    Wait(f64),
    /// Follow the round through all places.
    Patrol,
}

impl Action {
    /// Reads the first JSON object in `reply`.
    ///
    /// # Errors
    /// Why the robot will not do it.
    pub fn parse(reply: &str) -> Result<Self, String> {
        let start = reply.find('{').ok_or("no JSON in the reply")?;
        let mut values = serde_json::Deserializer::from_str(reply.get(start..).unwrap_or_default())
            .into_iter::<Value>();
        let value = values.next().and_then(Result::ok).ok_or("broken JSON in the reply")?;
        match value.get("action").and_then(Value::as_str) {
            Some("go") => {
                let name = value.get("place").and_then(Value::as_str).unwrap_or("");
                let (name, point) =
                    house::place(name).ok_or(format!("no place {name:?} in this house"))?;
                Ok(Self::Go(name, point))
            }
            Some("stop") => Ok(Self::Stop),
            Some("patrol") => Ok(Self::Patrol),
            Some("wait") => match value.get("seconds").and_then(Value::as_f64) {
                Some(seconds) if (0.0..=WAIT_SECONDS_MAX).contains(&seconds) => {
                    Ok(Self::Wait(seconds))
                }
                _ => Err(format!("a pause is 0 to {WAIT_SECONDS_MAX} seconds")),
            },
            Some(other) => Err(format!("no action {other:?}")),
            None => Err("no action in the JSON".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_the_list_is_done() {
        assert!(matches!(
            Action::parse(r#"Sure! {"action":"go","place":"Kitchen"} done"#),
            Ok(Action::Go("kitchen", _))
        ));
        assert_eq!(Action::parse(r#"{"action":"wait","seconds":5}"#), Ok(Action::Wait(5.0)));
        for refused in [
            "",
            "I cannot.",
            r#"{"action":"go","place":"the moon"}"#,
            r#"{"action":"go"}"#,
            r#"{"action":"wait","seconds":1e9}"#,
            r#"{"action":"self_destruct"}"#,
            r#"{"action":"#,
            "[]",
        ] {
            assert!(Action::parse(refused).is_err(), "{refused}");
        }
    }
}
