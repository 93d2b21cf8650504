//! Texts of probes, and their places in the output.

use crate::chat::history::Content;
use crate::chat::{Prompt, Role};

/// Key of the argument of a probe's call.
pub(super) const KEY: &str = "walla_key";

pub(super) fn role(letter: char) -> Role {
    match letter.to_ascii_lowercase() {
        's' => Role::System,
        'a' => Role::Assistant,
        'o' => Role::Observation,
        'c' => Role::Action,
        'r' => Role::ActionResult,
        _ => Role::User,
    }
}

pub(super) fn message((letter, content): (char, &String)) -> Content<'_> {
    (role(letter), content.into(), None)
}

/// The texts of a list of messages, with `fill` more characters. They have a fixed length, so none
/// is part of another.
pub(super) fn texts_of(letters: &str, fill: usize) -> Vec<String> {
    let long = "long ".repeat(fill.div_ceil(5));
    let text = |(at, letter): (usize, char)| match letter {
        'c' => format!(
            r#"{{"name": "walla_call_{at:02}", "arguments": {{"{KEY}": "walla probe {at:02}"}}}}"#
        ),
        letter if letter.is_ascii_uppercase() => String::new(),
        _ => format!("walla probe {long}{at:02}"),
    };
    letters.char_indices().map(text).collect()
}

/// The parts of a message that must be in the output, in this order: of a call the name and the
/// value of its argument.
fn parts(text: &str) -> Vec<&str> {
    let quoted: Vec<&str> = text.split('"').collect();
    match quoted.as_slice() {
        [_, "name", _, name, _, "arguments", _, KEY, _, value, _] => vec![name, value],
        _ => vec![text],
    }
}

/// A rendered probe.
pub(super) struct Sample {
    /// The whole output.
    pub text: String,
    /// Start and end of each message's text in the output; `None` if it is lost.
    places: Vec<Option<(usize, usize)>>,
}

impl Sample {
    pub fn new(prompt: &Prompt, texts: &[String]) -> Self {
        let text = prompt.text();
        let place = |wanted: &String| {
            let mut place: Option<(usize, usize)> = None;
            for part in parts(wanted) {
                let from = place.map_or(0, |(_, end)| end);
                let at = from + text.get(from..)?.find(part)?;
                place = Some((place.map_or(at, |(start, _)| start), at + part.len()));
            }
            place
        };
        let places = texts.iter().filter(|wanted| !wanted.is_empty()).map(place).collect();
        Self { text, places }
    }

    /// The first message whose text is not in the output. Only for lists without blank messages.
    pub fn first_lost(&self) -> Option<usize> {
        self.places.iter().position(Option::is_none)
    }

    pub fn is_whole(&self) -> bool {
        self.first_lost().is_none()
    }

    pub fn is_in_order(&self) -> bool {
        self.is_whole() && self.places.is_sorted()
    }

    /// Whether all texts are in the output, and in order, except for system messages. `letters` are
    /// the messages, none of them a blank system message.
    pub fn is_in_order_without_system(&self, letters: &str) -> bool {
        let of_text = letters.chars().filter(char::is_ascii_lowercase);
        let turns = of_text.zip(&self.places).filter(|(letter, _)| *letter != 's');
        self.is_whole() && turns.map(|(_, place)| place).is_sorted()
    }

    /// Whether there is more than white space between the messages.
    pub fn is_marked(&self) -> bool {
        let mut places: Vec<_> = self.places.iter().flatten().copied().collect();
        places.sort_unstable();
        places.windows(2).all(|pair| {
            let [(_, end), (start, _)] = pair else { return true };
            self.text.get(*end..*start).is_some_and(|between| !between.trim().is_empty())
        })
    }

    /// The text between two messages.
    pub fn between(&self, first: usize, second: usize) -> Option<String> {
        let ((_, end), (start, _)) = ((*self.places.get(first)?)?, (*self.places.get(second)?)?);
        self.text.get(end..start).map(str::to_owned)
    }

    /// The text after the last message, which starts the model's reply.
    pub fn end(&self) -> Option<String> {
        let last = self.places.iter().max().copied().flatten()?;
        self.is_in_order().then(|| self.text.get(last.1..).unwrap_or_default().to_owned())
    }
}
