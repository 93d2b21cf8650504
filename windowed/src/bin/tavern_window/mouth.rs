//! Shows words one by one, at the speed of speech, independently of the model's speed.

use bevy::prelude::*;
use bevy_walla::prelude::*;
use bevy_walla::reply::{FinishReason, ReplyId};
use bevy_walla::voice::Speaking;

/// Seconds per word: a short pause and its letters, about 16 letters a second.
const WORD_SECONDS: f32 = 0.06;
const LETTER_SECONDS: f32 = 0.055;

/// Time that a line stays visible after its last word.
const LINGER_SECONDS: f32 = 2.4;

/// The line of a guest without an answer.
const SPEECHLESS: &str = "(shrugs)";

/// Tag of the player's asks; guests ask each other without a tag.
pub const BY_PLAYER: u64 = 1;

/// The line that a guest is saying aloud.
#[derive(Component, Default)]
pub struct Mouth {
    line: String,
    /// Bytes of it that are shown.
    said: usize,
    /// Whether the line is complete.
    complete: bool,
    /// Whether the line is addressed to the player.
    to_player: bool,
    /// The reply of the line, if a model generates it.
    reply: Option<ReplyId>,
    /// Whether the line continues in the next reply, which follows the result of an action.
    goes_on: bool,
    /// Seconds until the next word or, after the last, until the bubble is hidden.
    wait: f32,
    announced: bool,
}

/// A guest has finished a line.
#[derive(Message, Clone, Debug)]
pub struct LineSpoken {
    /// The guest.
    pub guest: Entity,
    /// The line.
    pub line: String,
    /// Whether it was addressed to the player.
    pub to_player: bool,
}

pub fn plugin(app: &mut App) {
    app.add_message::<LineSpoken>()
        .add_observer(begin)
        .add_observer(hear)
        .add_observer(act)
        .add_observer(finish)
        .add_observer(fail)
        .add_systems(Update, speak);
}

impl Mouth {
    /// Says a line that is not from a model.
    pub fn say(&mut self, line: &str) {
        self.stop();
        self.line.push_str(line);
        self.complete = true;
    }

    /// Stops within the line.
    pub fn stop(&mut self) {
        self.line.clear();
        *self = Self { line: std::mem::take(&mut self.line), ..Self::default() };
    }

    /// Prepares for the reply with which the line goes on.
    fn join(&mut self) {
        if !self.line.is_empty() {
            self.line.push(' ');
        }
        self.goes_on = false;
    }

    /// Whether the line is addressed to the player.
    pub fn is_to_player(&self) -> bool {
        self.to_player
    }

    /// The words shown so far; empty without a line.
    pub fn words(&self) -> &str {
        self.line.get(..self.said).unwrap_or_default().trim()
    }

    /// Whether more words follow.
    pub fn is_talking(&self) -> bool {
        self.said > 0 && !(self.complete && self.said == self.line.len())
    }

    /// Shows the words up to the end of this one, which is spoken.
    pub fn hear(&mut self, word: &str) {
        let rest = self.line.get(self.said..).unwrap_or_default();
        if let Some(at) = rest.find(word) {
            self.said += at + word.len();
        }
    }

    /// Whether no line is left, and the last one has been visible long enough.
    pub fn is_quiet(&self) -> bool {
        self.line.is_empty()
    }

    /// Advances by `seconds`; true when the last word has just been shown.
    fn advance(&mut self, seconds: f32) -> bool {
        self.wait -= seconds;
        while self.wait <= 0.0 {
            if let Some(end) = word_end(&self.line, self.said, self.complete) {
                let letters = self.line.get(self.said..end).map_or(0, |word| word.chars().count());
                self.said = end;
                self.wait += WORD_SECONDS + LETTER_SECONDS * letters as f32;
            } else if self.complete && !self.announced && !self.line.is_empty() {
                self.announced = true;
                self.wait = LINGER_SECONDS;
                return true;
            } else if self.complete {
                self.stop();
                return false;
            } else {
                self.wait = 0.0; // waits for the model
                return false;
            }
        }
        false
    }
}

/// End of the next word, if it is known: a word is complete if a space follows it, or if the line
/// is complete.
fn word_end(line: &str, said: usize, complete: bool) -> Option<usize> {
    let rest = line.get(said..)?;
    let word = rest.find(|letter: char| !letter.is_whitespace())?;
    let space = rest.get(word..)?.find(char::is_whitespace).map(|length| said + word + length);
    space.or(complete.then_some(line.len()))
}

fn begin(started: On<ReplyStarted>, mut mouths: Query<&mut Mouth>) {
    if let Ok(mut mouth) = mouths.get_mut(started.agent) {
        if mouth.goes_on {
            mouth.join();
        } else {
            mouth.stop();
        }
        mouth.reply = Some(started.reply_id);
        mouth.to_player = started.tag == BY_PLAYER;
    }
}

fn hear(delta: On<ReplyDelta>, mut mouths: Query<&mut Mouth>) {
    if let Ok(mut mouth) = mouths.get_mut(delta.agent)
        && mouth.reply == Some(delta.reply_id)
    {
        mouth.line.push_str(&delta.text);
    }
}

/// "Certainly." and "The horseshoe is yours.", before and after a sale, are one line.
fn act(result: On<ActionResult>, mut mouths: Query<&mut Mouth>) {
    if let Ok(mut mouth) = mouths.get_mut(result.agent)
        && mouth.reply == Some(result.id.reply_id)
    {
        mouth.goes_on = true;
    }
}

fn finish(finished: On<ReplyFinished>, mut mouths: Query<&mut Mouth>) {
    let Ok(mut mouth) = mouths.get_mut(finished.agent) else { return };
    if mouth.reply != Some(finished.reply_id) {
        return; // it never began, or was cancelled
    }
    if finished.reason == FinishReason::Cancelled {
        mouth.stop();
    } else if !mouth.goes_on {
        if mouth.line.trim().is_empty() {
            mouth.line.push_str(SPEECHLESS);
        }
        mouth.complete = true;
    }
}

fn fail(failed: On<ReplyFailed>, mut mouths: Query<&mut Mouth>) {
    warn!("no answer: {}", failed.error);
    let Ok(mut mouth) = mouths.get_mut(failed.agent) else { return };
    mouth.say(SPEECHLESS);
    mouth.to_player = failed.tag == BY_PLAYER;
}

fn speak(
    time: Res<Time>,
    mut mouths: Query<(Entity, &mut Mouth, Option<&Speaking>)>,
    mut spoken: MessageWriter<LineSpoken>,
) {
    for (guest, mut mouth, voice) in &mut mouths {
        // A voice shows its words itself. What it leaves out is shown when it has ended.
        if voice.is_some_and(|voice| voice.is_speaking() || !mouth.complete) {
            continue;
        }
        if mouth.line.is_empty() && !mouth.complete {
            continue;
        }
        if mouth.advance(time.delta_secs()) {
            let line = mouth.words().to_owned();
            spoken.write(LineSpoken { guest, line, to_player: mouth.to_player });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_words_are_not_shown() {
        assert_eq!(word_end("It cos", 0, false), Some(2));
        assert_eq!(word_end("It cos", 2, false), None);
        assert_eq!(word_end("It costs 3", 2, false), Some(8));
        assert_eq!(word_end("It costs 3", 8, true), Some(10));
        assert_eq!(word_end("It costs 3", 10, true), None);
        assert_eq!(word_end("  ", 0, true), None);
    }

    #[test]
    fn spoken_words_are_shown() {
        let mut mouth = Mouth { line: "It costs 3 silver.".to_owned(), ..Mouth::default() };
        for (word, shown) in [("It", "It"), ("3", "It costs 3"), ("It", "It costs 3")] {
            mouth.hear(word);
            assert_eq!(mouth.words(), shown);
        }
    }

    #[test]
    fn a_line_goes_on_after_an_action() {
        let mut mouth = Mouth { line: "Certainly.".to_owned(), goes_on: true, ..Mouth::default() };
        assert!(!mouth.advance(600.0), "more words follow");
        mouth.join();
        mouth.line.push_str("The ale is yours.");
        mouth.complete = true;
        assert!(mouth.advance(600.0));
        assert_eq!(mouth.words(), "Certainly. The ale is yours.");
    }

    #[test]
    fn a_line_is_announced_once_and_then_removed() {
        let mut mouth = Mouth::default();
        mouth.say("Well met, Odo.");
        let mut announced = 0;
        let mut longest = 0;
        for _ in 0..600 {
            announced += u32::from(mouth.advance(1.0 / 60.0));
            longest = longest.max(mouth.words().len());
        }
        assert_eq!((announced, longest), (1, "Well met, Odo.".len()));
        assert!(mouth.is_quiet());
    }
}
