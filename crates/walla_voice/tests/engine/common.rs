use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use walla_voice::{
    Mouth, MouthEvent, MouthReader, Recognition, RecognizeOptions, SpeakOptions, SpeechRecognizer,
    SpeechSynthesizer, Step, Timed, Timing, Transcript, Utterance, Viseme, VoiceActivity,
    VoiceError,
};

/// Samples of a piece of work of the scripted voice.
pub const PIECE: usize = 1000;

/// A voice whose sound of a text is one piece for each letter, with the letter as the samples'
/// value: 'a' is 1/256, 'b' 2/256 and so on. `!` fails, `?` panics, `~` is slow.
#[derive(Debug, Default)]
pub struct Letters {
    /// Pieces of work so far.
    pub steps: AtomicUsize,
    /// Time of each piece.
    pub time: Duration,
    /// Texts and their seeds, in order.
    pub seeds: Mutex<Vec<(String, u64)>>,
}

impl SpeechSynthesizer for Letters {
    fn sample_rate(&self) -> u32 {
        10_000
    }

    fn begin(
        self: Arc<Self>,
        text: &str,
        options: &SpeakOptions,
    ) -> Result<Box<dyn Utterance>, VoiceError> {
        options.check()?;
        self.seeds.lock().unwrap().push((text.to_owned(), options.seed));
        let text: Vec<char> = text.chars().collect();
        Ok(Box::new(Spelling { voice: self, text, next: None }))
    }
}

#[derive(Debug)]
struct Spelling {
    voice: Arc<Letters>,
    text: Vec<char>,
    next: Option<usize>,
}

impl Utterance for Spelling {
    fn step(&mut self, out: &mut Vec<f32>) -> Result<Step, VoiceError> {
        self.voice.steps.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.voice.time);
        let Some(next) = &mut self.next else {
            self.next = Some(0);
            let word = |(index, _)| {
                let start = (index * PIECE) as u64;
                Timed { value: index..index + 1, start, end: start + PIECE as u64 }
            };
            let words: Vec<_> = self.text.iter().enumerate().map(word).collect();
            let samples = 0..(self.text.len() * PIECE) as u64;
            let viseme = Timed { value: Viseme::Aa, start: 0, end: samples.end };
            return Ok(Step::Planned(Timing {
                samples,
                words,
                visemes: vec![viseme],
                phonemes: Vec::new(),
            }));
        };
        let Some(letter) = self.text.get(*next) else { return Ok(Step::Ended) };
        *next += 1;
        match letter {
            '!' => return Err(VoiceError::Failed("scripted".to_owned())),
            '?' => panic!("scripted"),
            '~' => std::thread::sleep(Duration::from_millis(150)),
            _ => {}
        }
        out.extend([level(*letter); PIECE]);
        Ok(Step::Working)
    }
}

pub fn level(letter: char) -> f32 {
    (letter as u32).saturating_sub(0x60) as f32 / 256.0
}

/// Reads until all sentences have ended. Returns the samples of speech.
pub fn read_all(mouth: &Mouth, reader: &mut MouthReader) -> Vec<f32> {
    let (mut all, mut block) = (Vec::new(), [0.0; 441]);
    let end = Instant::now() + Duration::from_secs(60);
    while !mouth.is_idle() {
        assert!(Instant::now() < end, "the mouth does not become idle");
        let count = reader.read(&mut block);
        all.extend_from_slice(&block[..count]);
        assert!(block[count..].iter().all(|sample| *sample == 0.0));
        if count == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    all
}

/// Samples of these letters.
pub fn letters(text: &str) -> Vec<f32> {
    text.chars().flat_map(|letter| [level(letter); PIECE]).collect()
}

/// The next event, waited for.
pub fn event(mouth: &mut Mouth) -> MouthEvent {
    wait(|| mouth.try_event())
}

pub fn wait<T>(mut next: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = next() {
            return value;
        }
        assert!(Instant::now() < end, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A voice of the host's with defects: its first steps report these results, with samples of this
/// level, and then it ends.
#[derive(Debug)]
pub struct Defective {
    pub rate: u32,
    /// Calls of `sample_rate` until it panics.
    pub rates: AtomicUsize,
    pub plans: Vec<Timing>,
    pub level: f32,
    /// Whether the drop of an utterance panics.
    pub drop_panics: bool,
    /// Of the voice.
    #[expect(dead_code, reason = "its drop")]
    pub dropped: Dropped,
}

impl Default for Defective {
    fn default() -> Self {
        let rates = AtomicUsize::new(usize::MAX);
        Self {
            rate: 10_000,
            rates,
            plans: Vec::new(),
            level: 0.5,
            drop_panics: false,
            dropped: Dropped(false),
        }
    }
}

impl SpeechSynthesizer for Defective {
    fn sample_rate(&self) -> u32 {
        assert!(self.rates.fetch_sub(1, Ordering::SeqCst) > 0, "scripted");
        self.rate
    }

    fn begin(self: Arc<Self>, _: &str, _: &SpeakOptions) -> Result<Box<dyn Utterance>, VoiceError> {
        Ok(Box::new(DefectiveUtterance { voice: self, steps: 0 }))
    }
}

/// Panics in its drop, if so.
#[derive(Debug)]
pub struct Dropped(pub bool);

impl Drop for Dropped {
    fn drop(&mut self) {
        assert!(!self.0, "scripted");
    }
}

#[derive(Debug)]
struct DefectiveUtterance {
    voice: Arc<Defective>,
    steps: usize,
}

impl Utterance for DefectiveUtterance {
    fn step(&mut self, out: &mut Vec<f32>) -> Result<Step, VoiceError> {
        let plan = self.voice.plans.get(self.steps);
        self.steps += 1;
        match plan {
            Some(plan) => Ok(Step::Planned(plan.clone())),
            None if self.steps == self.voice.plans.len() + 1 => {
                out.extend([self.voice.level; PIECE]);
                Ok(Step::Working)
            }
            None => Ok(Step::Ended),
        }
    }
}

impl Drop for DefectiveUtterance {
    fn drop(&mut self) {
        assert!(!self.voice.drop_panics, "scripted");
    }
}

/// Hears speech in samples that are not zero.
#[derive(Debug, Default)]
pub struct Loud;

impl VoiceActivity for Loud {
    fn frame_samples(&self) -> usize {
        256
    }

    fn push(&mut self, frame: &[f32]) -> Result<f32, VoiceError> {
        if frame.contains(&0.125) {
            return Err(VoiceError::Failed("scripted".to_owned()));
        }
        Ok(if frame.iter().any(|sample| sample.abs() > 0.01) { 1.0 } else { 0.0 })
    }

    fn reset(&mut self) {}
}

/// Understands the number of loud milliseconds, after some steps.
#[derive(Debug, Default)]
pub struct Milliseconds {
    pub steps: AtomicUsize,
    /// Texts that were begun.
    pub begun: AtomicUsize,
    pub time: Duration,
    pub log_probability: f32,
}

impl SpeechRecognizer for Milliseconds {
    fn max_samples(&self) -> usize {
        30 * 16_000
    }

    fn begin(
        self: Arc<Self>,
        samples: &[f32],
        _options: &RecognizeOptions,
    ) -> Result<Box<dyn Recognition>, VoiceError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let loud = samples.iter().filter(|sample| sample.abs() > 0.01).count() / 16;
        let has_failed = samples.contains(&0.25);
        Ok(Box::new(Counting { recognizer: self, loud, left: 3, has_failed }))
    }
}

#[derive(Debug)]
struct Counting {
    recognizer: Arc<Milliseconds>,
    loud: usize,
    left: usize,
    has_failed: bool,
}

impl Recognition for Counting {
    fn step(&mut self) -> Result<Option<Transcript>, VoiceError> {
        self.recognizer.steps.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.recognizer.time);
        assert!(self.left > 0);
        self.left -= 1;
        if self.has_failed {
            return Err(VoiceError::Failed("scripted".to_owned()));
        }
        let text = if self.loud > 5000 { String::new() } else { self.loud.to_string() };
        let log_probability = self.recognizer.log_probability;
        let transcript = Transcript { text, log_probability, language: None };
        Ok((self.left == 0).then_some(transcript))
    }
}

/// A detector and a recogniser of the host's with defects.
#[derive(Debug)]
pub struct DefectiveHearing {
    /// Calls of `frame_samples` and `max_samples` until they panic.
    pub sizes: AtomicUsize,
    /// Whether the drop of a recognition panics; of the detector and of the recogniser too.
    pub drop_panics: bool,
    #[expect(dead_code, reason = "its drop")]
    pub dropped: Dropped,
    /// Text of recordings; none: a recognition never ends.
    pub transcript: Option<Transcript>,
}

impl Default for DefectiveHearing {
    fn default() -> Self {
        let (sizes, dropped) = (AtomicUsize::new(usize::MAX), Dropped(false));
        Self { sizes, drop_panics: false, dropped, transcript: Some(Transcript::default()) }
    }
}

impl VoiceActivity for DefectiveHearing {
    fn frame_samples(&self) -> usize {
        assert!(self.sizes.fetch_sub(1, Ordering::SeqCst) > 0, "scripted");
        256
    }

    fn push(&mut self, frame: &[f32]) -> Result<f32, VoiceError> {
        Loud.push(frame)
    }

    fn reset(&mut self) {}
}

impl SpeechRecognizer for DefectiveHearing {
    fn max_samples(&self) -> usize {
        assert!(self.sizes.fetch_sub(1, Ordering::SeqCst) > 0, "scripted");
        30 * 16_000
    }

    fn begin(
        self: Arc<Self>,
        _: &[f32],
        _: &RecognizeOptions,
    ) -> Result<Box<dyn Recognition>, VoiceError> {
        let dropped = Dropped(self.drop_panics);
        Ok(Box::new(DefectiveRecognition { transcript: self.transcript.clone(), dropped }))
    }
}

#[derive(Debug)]
struct DefectiveRecognition {
    transcript: Option<Transcript>,
    #[expect(dead_code, reason = "its drop")]
    dropped: Dropped,
}

impl Recognition for DefectiveRecognition {
    fn step(&mut self) -> Result<Option<Transcript>, VoiceError> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(self.transcript.take())
    }
}
