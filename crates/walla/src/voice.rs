//! Speech: replies that are spoken, and players who are heard.
//!
//! [`Reply::speak`] speaks the sentences of a reply while it is written. [`Hearing`] is the stream
//! of the texts from a microphone. Both run on the thread of a [`VoiceEngine`].
//!
//! # Examples
//! Speaks an answer to a file or to a network: the samples come as soon as they are made.
//! ```no_run
//! # async fn run(smith: walla::Agent) -> Result<(), Box<dyn std::error::Error>> {
//! use walla::voice::{MouthOptions, SpeakOptions, SpokenEvent, VoiceEngine, VoiceOptions};
//! # #[cfg(feature = "voice")] {
//! let voice = walla::voice::Piper::load("voices/greta.onnx", Default::default())?;
//! let engine = VoiceEngine::new(&VoiceOptions::default())?;
//! let mouth = engine.mouth(voice, MouthOptions::default())?;
//! let mut spoken = smith.ask("What does a horseshoe cost?").speak(mouth, SpeakOptions::default());
//! while let Some(event) = spoken.next().await {
//!     match event? {
//!         SpokenEvent::Sentence { text, .. } => println!("{text}"),
//!         SpokenEvent::Samples(samples) => println!("{} samples", samples.len()),
//!         _ => {}
//!     }
//! }
//! # }
//! # Ok(())
//! # }
//! ```
//! With a sound card, give [`Mouth::take_reader`] to its thread before. A reply then ends
//! when all of it was made; [`SpokenReply::position`] is the place of the playback, and
//! [`SpokenReply::interrupt`] keeps that part in the conversation.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use walla_runtime::{ReplyError, SentenceSplitter};
pub use walla_voice::*;

use crate::reply::Reply;

/// Samples of [`SpokenEvent::Samples`], at most.
const BLOCK: usize = 1024;

/// What happens while a reply is spoken.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpokenEvent {
    /// The model has written a sentence.
    Sentence {
        /// Its number in the mouth.
        sentence: SentenceId,
        /// Its text.
        text: Arc<str>,
    },
    /// Times of the next part of a sentence.
    Times {
        /// The sentence.
        sentence: SentenceId,
        /// Times, in samples of the sentence.
        timing: Timing,
    },
    /// The next samples, mono, at the voice's rate, unless the reader of the mouth was taken
    /// before.
    Samples(Vec<f32>),
    /// All samples of a sentence were made.
    Made {
        /// The sentence.
        sentence: SentenceId,
        /// Their number.
        samples: u64,
    },
    /// A sentence cannot be spoken. The others are.
    Failed {
        /// The sentence; `None`: it was not taken at all.
        sentence: Option<SentenceId>,
        /// Why.
        error: VoiceError,
    },
}

/// A reply that is spoken while it is written: [`Reply::speak`]. Dropping it cancels the rest of
/// the reply and its speech.
#[derive(Debug)]
pub struct SpokenReply {
    reply: Reply,
    has_ended: bool,
    mouth: Mouth,
    /// `None`: the host has taken it.
    reader: Option<MouthReader>,
    options: SpeakOptions,
    splitter: SentenceSplitter,
    /// The speech so far, and the bytes of it that are in sentences.
    speech: String,
    divided: usize,
    /// Sentences that the mouth has not taken, with their ends in the speech.
    waiting: VecDeque<(String, usize)>,
    sentences: Vec<Spoken>,
    events: VecDeque<SpokenEvent>,
}

/// A sentence in the mouth.
#[derive(Debug)]
struct Spoken {
    id: SentenceId,
    /// Bytes of speech up to its end.
    end: usize,
    text: Arc<str>,
    timing: Timing,
    /// Samples of all of it, when they are made.
    samples: Option<u64>,
    /// Nothing more of it will be made.
    is_made: bool,
}

impl Reply {
    /// Speaks the sentences of the reply while it is written. With [cues](Reply::with_cues), they
    /// are not spoken.
    #[must_use]
    pub fn speak(self, mut mouth: Mouth, options: SpeakOptions) -> SpokenReply {
        SpokenReply {
            reply: self,
            has_ended: false,
            reader: mouth.take_reader(),
            mouth,
            options,
            splitter: SentenceSplitter::default(),
            speech: String::new(),
            divided: 0,
            waiting: VecDeque::new(),
            sentences: Vec::new(),
            events: VecDeque::new(),
        }
    }
}

impl SpokenReply {
    /// Waits for the next event; `None` once the reply has ended and all of it was spoken (with the
    /// samples here) or made (with the samples elsewhere).
    ///
    /// # Errors
    /// [`ReplyError`] if the reply failed. Its text before the failure is spoken to the end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<SpokenEvent, ReplyError>> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// The reply, for its calls, cues and usage.
    #[must_use]
    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Samples per second.
    #[must_use]
    pub fn sample_rate(&self) -> u32 {
        self.mouth.sample_rate()
    }

    /// Whether all sentences so far were played or stopped.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.mouth.is_idle()
    }

    /// How far the playback is.
    #[must_use]
    pub fn position(&self) -> Position {
        self.mouth.position()
    }

    /// Falls silent at once, cancels the reply, and shortens it to the part that was played
    /// ([`Reply::cancel_heard`]). Returns that part's bytes of the reply. Never blocks.
    pub fn interrupt(&mut self) -> usize {
        let position = self.mouth.stop();
        self.waiting.clear();
        // Times that no task has waited for.
        while let Some(event) = self.mouth.try_event() {
            self.take(event);
        }
        let heard = self.sentences.iter().rfind(|its| its.id <= position.sentence);
        let spoken = heard.map_or(0, |heard| {
            let Spoken { text, timing, samples, .. } = heard;
            let is_current = heard.id == position.sentence;
            let played = if is_current { position.samples } else { u64::MAX };
            let bytes = timing.heard_bytes_of(text, *samples, played, self.mouth.sample_rate());
            heard.end - text.len() + bytes
        });
        let heard_bytes = self.reply.spoken_reply_bytes(spoken);
        self.reply.cancel_heard(heard_bytes);
        heard_bytes
    }

    /// The mouth again, for the next reply, with its reader if the host has not taken that. Said
    /// sentences are spoken to the end; the rest of the reply is cancelled.
    #[must_use]
    pub fn into_mouth(self) -> (Mouth, Option<MouthReader>) {
        (self.mouth, self.reader)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<SpokenEvent, ReplyError>>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let mut has_changed = false;
            if !self.has_ended
                && let Poll::Ready(delta) = Pin::new(&mut self.reply).poll_next(context)
            {
                has_changed = true;
                match delta {
                    Some(Ok(delta)) => self.write(delta.text()),
                    Some(Err(error)) => {
                        self.end();
                        return Poll::Ready(Some(Err(error)));
                    }
                    None => self.end(),
                }
            }
            self.say();
            while let Poll::Ready(event) = self.mouth.poll_event(context) {
                let Some(event) = event else {
                    has_changed |= self.stop();
                    break;
                };
                has_changed = true;
                self.take(event);
            }
            if let Some(reader) = &mut self.reader {
                let mut samples = vec![0.0; BLOCK];
                if let Poll::Ready(count @ 1..) = reader.poll_read(context, &mut samples) {
                    samples.truncate(count);
                    self.events.push_back(SpokenEvent::Samples(samples));
                    has_changed = true;
                }
            }
            if has_changed || !self.events.is_empty() {
                continue;
            }
            let is_made = self.sentences.iter().all(|its| its.is_made);
            let is_read = self.reader.as_ref().is_none_or(MouthReader::is_idle);
            if self.has_ended && self.waiting.is_empty() && is_made && is_read {
                return Poll::Ready(None);
            }
            return Poll::Pending;
        }
    }

    /// The reply has more text.
    fn write(&mut self, text: &str) {
        self.speech.push_str(text);
        let Self { splitter, speech, divided, waiting, .. } = self;
        splitter.push(text, |sentence| divide(sentence, speech, divided, waiting));
    }

    /// The reply has ended. Its last sentence may have no mark at the end.
    fn end(&mut self) {
        self.has_ended = true;
        let Self { splitter, speech, divided, waiting, .. } = self;
        splitter.finish(|sentence| divide(sentence, speech, divided, waiting));
    }

    /// Gives the mouth as many sentences as it takes.
    fn say(&mut self) {
        while let Some((text, end)) = self.waiting.pop_front() {
            let said: Arc<str> = text.as_str().into();
            match self.mouth.say(text, self.options.clone()) {
                Ok(id) => {
                    let (text, timing) = (Arc::clone(&said), Timing::default());
                    let (samples, is_made) = (None, false);
                    self.sentences.push(Spoken { id, end, text, timing, samples, is_made });
                    self.events.push_back(SpokenEvent::Sentence { sentence: id, text: said });
                }
                Err(SayError::Full(text)) => return self.waiting.push_front((text, end)),
                Err(error) => {
                    let error = match error {
                        SayError::Option(_, error) => error,
                        SayError::Stopped(_) => VoiceError::Stopped,
                        error => VoiceError::Failed(error.to_string()),
                    };
                    self.events.push_back(SpokenEvent::Failed { sentence: None, error });
                }
            }
        }
    }

    /// The thread has ended: sentences that it has not made fail. Returns whether there were some.
    fn stop(&mut self) -> bool {
        let before = self.events.len();
        for its in self.sentences.iter_mut().filter(|its| !its.is_made) {
            its.is_made = true;
            let (sentence, error) = (Some(its.id), VoiceError::Stopped);
            self.events.push_back(SpokenEvent::Failed { sentence, error });
        }
        self.events.len() > before
    }

    fn take(&mut self, event: MouthEvent) {
        let (MouthEvent::Planned { sentence, .. }
        | MouthEvent::Made { sentence, .. }
        | MouthEvent::Failed { sentence, .. }
        | MouthEvent::Stopped { sentence }) = event
        else {
            return;
        };
        let its = self.sentences.iter_mut().find(|its| its.id == sentence);
        if let Some(its) = its {
            match &event {
                MouthEvent::Planned { timing, .. } => its.timing.append(timing.clone()),
                MouthEvent::Made { samples, .. } => {
                    (its.samples, its.is_made) = (Some(*samples), true);
                }
                _ => its.is_made = true,
            }
        }
        self.events.extend(match event {
            MouthEvent::Planned { timing, .. } => Some(SpokenEvent::Times { sentence, timing }),
            MouthEvent::Made { samples, .. } => Some(SpokenEvent::Made { sentence, samples }),
            MouthEvent::Failed { error, .. } => {
                Some(SpokenEvent::Failed { sentence: Some(sentence), error })
            }
            _ => None,
        });
    }
}

/// A sentence of the speech, which is divided up to `divided`.
fn divide(
    sentence: &str,
    speech: &str,
    divided: &mut usize,
    waiting: &mut VecDeque<(String, usize)>,
) {
    let rest = speech.get(*divided..).unwrap_or_default();
    let skipped = rest.len() - rest.trim_start().len();
    *divided = (*divided + skipped + sentence.len()).min(speech.len());
    waiting.push_back((sentence.to_owned(), *divided));
}

impl Stream for SpokenReply {
    type Item = Result<SpokenEvent, ReplyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context)
    }
}

/// The texts from a microphone, as a stream. It ends when the [`Microphone`] was dropped and all is
/// recognised.
///
/// # Examples
/// ```no_run
/// # async fn run(engine: walla::voice::VoiceEngine) -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "voice")] {
/// use walla::voice::{EarEvent, EarOptions, Earshot, Hearing, Whisper};
/// let whisper = Whisper::load("whisper/tiny.en", Default::default())?;
/// let (ear, mut microphone) =
///     engine.ear(whisper, Box::new(Earshot::default()), EarOptions::default())?;
/// let mut hearing = Hearing::new(ear);
/// microphone.push(&[0.0; 480], 48_000); // on the thread of the sound card
/// while let Some(event) = hearing.next().await {
///     if let EarEvent::Final { transcript, .. } = event {
///         println!("{}", transcript.text);
///     }
/// }
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Hearing {
    ear: Ear,
}

impl Hearing {
    /// The stream of an ear.
    #[must_use]
    pub fn new(ear: Ear) -> Self {
        Self { ear }
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<EarEvent> {
        std::future::poll_fn(|context| self.ear.poll_event(context)).await
    }

    /// The ear.
    #[must_use]
    pub fn ear(&self) -> &Ear {
        &self.ear
    }
}

impl Stream for Hearing {
    type Item = EarEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ear.poll_event(context)
    }
}
