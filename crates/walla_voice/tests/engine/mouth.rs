use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use walla_voice::{
    Ear, Microphone, Mouth, MouthEvent, MouthOptions, MouthReader, SayError, SentenceId,
    SpeakOptions, Timed, Timing, VoiceEngine, VoiceError, VoiceOptions,
};

use crate::common::{Defective, Dropped, Letters, PIECE, event, letters, read_all, wait};

fn engine() -> VoiceEngine {
    VoiceEngine::new(&VoiceOptions::default()).unwrap()
}

fn options() -> SpeakOptions {
    SpeakOptions::default()
}

#[test]
fn sentences_follow_each_other() {
    let mut mouth = engine().mouth(Arc::new(Letters::default()), MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    assert!(mouth.take_reader().is_none());
    assert!(mouth.is_idle() && reader.is_idle());
    let texts = ["abc", "", "d", "efgh"];
    let ids: Vec<SentenceId> =
        texts.iter().map(|text| mouth.say((*text).to_owned(), options()).unwrap()).collect();
    assert!(ids.is_sorted() && !mouth.is_idle());
    for (id, text) in ids.iter().zip(texts) {
        let MouthEvent::Planned { sentence, timing } = event(&mut mouth) else { panic!() };
        assert_eq!((sentence, timing.words.len()), (*id, text.len()));
        let MouthEvent::Made { sentence, samples } = event(&mut mouth) else { panic!() };
        assert_eq!((sentence, samples), (*id, (text.len() * PIECE) as u64));
    }
    assert!(mouth.try_event().is_none());
    assert!(read_all(&mouth, &mut reader) == letters("abcdefgh"));
    assert!(reader.is_idle());
    let position = mouth.position();
    assert_eq!((position.sentence, position.samples), (ids[3], 4 * PIECE as u64));
    assert_eq!(mouth.underrun_samples(), 0, "waiting for a sentence is no underrun");
}

#[test]
fn sound_is_made_ahead_within_its_bound() {
    let voice = Arc::new(Letters::default());
    let ahead = Duration::from_millis(500);
    let options = MouthOptions { ahead, ..MouthOptions::default() };
    let mut mouth = engine().mouth(Arc::clone(&voice) as _, options).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    mouth.say("a".repeat(100), self::options()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    // 500 ms are five pieces; one more may wait for room, and the first step is the plan.
    let steps = voice.steps.load(Ordering::SeqCst);
    assert!((2..=8).contains(&steps), "{steps}");
    assert_eq!(read_all(&mouth, &mut reader).len(), 100 * PIECE);
}

#[test]
fn a_stop_ends_all_sentences_and_the_position_is_exact() {
    let voice = Arc::new(Letters { time: Duration::from_millis(5), ..Letters::default() });
    let mut mouth = engine().mouth(Arc::clone(&voice) as _, MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    let first = mouth.say("a".repeat(50), options()).unwrap();
    let second = mouth.say("b".repeat(50), options()).unwrap();
    wait(|| (voice.steps.load(Ordering::SeqCst) > 6).then_some(()));
    assert_eq!(reader.read(&mut vec![0.0; 2345]), 2345);
    let position = mouth.stop();
    let steps = voice.steps.load(Ordering::SeqCst);
    assert_eq!((position.sentence, position.samples), (first, 2345));
    let third = mouth.say("cd".to_owned(), options()).unwrap();
    let mut stopped = Vec::new();
    loop {
        match event(&mut mouth) {
            MouthEvent::Stopped { sentence } => stopped.push(sentence),
            MouthEvent::Made { sentence, .. } => {
                assert_eq!(sentence, third);
                break;
            }
            _ => {}
        }
    }
    assert_eq!(stopped, [first, second]);
    // The third sentence has four pieces; one may have run when the stop came.
    let more = voice.steps.load(Ordering::SeqCst) - steps;
    assert!(more <= 4 + 1, "{more} pieces after the stop");
    assert_eq!(mouth.underrun_samples(), 0, "a stop is no underrun");
    assert!(read_all(&mouth, &mut reader) == letters("cd"), "nothing of the others is heard");
    // A stop of nothing.
    let position = mouth.stop();
    assert_eq!((position.sentence, position.samples), (third, 2 * PIECE as u64));
    assert!(mouth.is_idle());
}

#[test]
fn missing_sound_is_counted() {
    let mut mouth = engine().mouth(Arc::new(Letters::default()), MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    mouth.say("ab~c".to_owned(), options()).unwrap();
    let mut block = [1.0; 100];
    // At once: the sound before the slow letter is read before the letter is made.
    let end = Instant::now() + Duration::from_secs(60);
    while !mouth.is_idle() {
        assert!(Instant::now() < end);
        reader.read(&mut block);
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(mouth.underrun_samples() > 0);
    let position = mouth.position();
    assert_eq!(position.samples, 4 * PIECE as u64, "nothing is lost");
}

#[test]
fn a_failed_sentence_ends_and_the_next_one_is_spoken() {
    let mut mouth = engine().mouth(Arc::new(Letters::default()), MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    for text in ["ab!c", "?", "d"] {
        mouth.say(text.to_owned(), options()).unwrap();
    }
    assert!(read_all(&mouth, &mut reader) == letters("abd"), "what was made is played");
    let mut ends = Vec::new();
    while let Some(event) = mouth.try_event() {
        match event {
            MouthEvent::Failed { error: VoiceError::Failed(_), .. } => ends.push("failed"),
            MouthEvent::Made { .. } => ends.push("made"),
            MouthEvent::Planned { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ends, ["failed", "failed", "made"]);
}

#[test]
fn refusals_return_the_text() {
    let voice = Arc::new(Letters { time: Duration::from_millis(20), ..Letters::default() });
    let options = MouthOptions { max_sentences: 2, ..MouthOptions::default() };
    let engine = engine();
    let mut mouth = engine.mouth(voice, options).unwrap();
    let long = "a".repeat((64 << 10) + 1);
    let refused = mouth.say(long.clone(), self::options());
    assert!(matches!(refused, Err(SayError::TooLong(text)) if text == long));
    for speed in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let wrong = SpeakOptions { speed, ..self::options() };
        assert!(
            matches!(mouth.say("a".to_owned(), wrong), Err(SayError::Option(text, _)) if text == "a")
        );
    }
    let refused = (0..10).find_map(|_| mouth.say("abc".to_owned(), self::options()).err());
    assert!(matches!(refused, Some(SayError::Full(text)) if text == "abc"));
    for wrong in [
        MouthOptions { max_sentences: 0, ..options },
        MouthOptions { ahead: Duration::ZERO, ..options },
        MouthOptions { ahead: Duration::MAX, ..options },
    ] {
        let mouth = engine.mouth(Arc::new(Letters::default()), wrong);
        assert!(matches!(mouth, Err(VoiceError::Option { .. })));
    }
}

#[test]
fn the_sound_that_is_needed_first_is_made_first() {
    // Twelve mouths; four of them speak long sentences: each has its first sound before any has
    // more than the others.
    let voice = Arc::new(Letters { time: Duration::from_millis(2), ..Letters::default() });
    let engine = engine();
    let mut mouths: Vec<_> = (0..4)
        .map(|_| engine.mouth(Arc::clone(&voice) as _, MouthOptions::default()).unwrap())
        .collect();
    let mut readers: Vec<_> = mouths.iter_mut().map(|mouth| mouth.take_reader().unwrap()).collect();
    for mouth in &mut mouths {
        mouth.say("a".repeat(30), options()).unwrap();
    }
    // Playback at 20 times the real speed of four mouths, with work of 2 ms for 100 ms of sound.
    let mut block = [0.0; 100];
    wait(|| {
        std::thread::sleep(Duration::from_millis(1));
        for reader in &mut readers {
            reader.read(&mut block);
        }
        let samples: Vec<u64> = mouths.iter().map(|mouth| mouth.position().samples).collect();
        let (least, most) = (samples.iter().min().unwrap(), samples.iter().max().unwrap());
        assert!(most - least <= 10 * PIECE as u64, "{samples:?}");
        mouths.iter().all(Mouth::is_idle).then_some(())
    });
}

#[test]
fn a_voice_that_begins_does_not_interrupt_another_one() {
    let budget = Some(Duration::from_millis(5));
    let engine = VoiceEngine::new(&VoiceOptions { budget, ..VoiceOptions::default() }).unwrap();
    let voice = Arc::new(Letters { time: Duration::from_millis(10), ..Letters::default() });
    let options = MouthOptions { prebuffer: Duration::ZERO, ..MouthOptions::default() };
    let mouth = || engine.mouth(Arc::clone(&voice) as _, options).unwrap();
    let (mut begins, mut speaks) = (mouth(), mouth());
    let mut reader = speaks.take_reader().unwrap();
    // Grants frames until the reader has samples: at most one piece of work for each.
    let mut frames_until_sound = || {
        (0..100).find(|_| {
            engine.frame();
            std::thread::sleep(Duration::from_millis(25));
            let mut count = 0;
            while reader.read(&mut [0.0; 100]) > 0 {
                count += 1;
            }
            count > 0
        })
    };
    speaks.say("a".repeat(30), self::options()).unwrap();
    assert!(frames_until_sound().is_some());
    // Its sound has run out in the middle of the sentence.
    let said = Instant::now();
    begins.say("b".to_owned(), self::options()).unwrap();
    assert!(frames_until_sound().is_some());
    let has_waited = voice.seeds.lock().unwrap().len() == 1;
    // On a busy machine, its deadline may precede the other one's.
    assert!(has_waited || said.elapsed() > Duration::from_millis(150), "{:?}", said.elapsed());
    for _ in 0..100 {
        frames_until_sound();
        if voice.seeds.lock().unwrap().len() == 2 {
            return;
        }
    }
    panic!("the other one waits for ever");
}

#[test]
fn the_work_for_the_next_sound_begins_in_time() {
    // 100 ms of sound take 150 ms of work: with 180 ms of sound left, they are more urgent than a
    // voice that begins. On a busy machine a frame may come too late for one try.
    assert!((0..5).any(|_| sound_precedes_a_new_voice()));
}

/// Whether a voice that is heard continues before another one begins.
fn sound_precedes_a_new_voice() -> bool {
    let budget = Some(Duration::from_millis(5));
    let engine = VoiceEngine::new(&VoiceOptions { budget, ..VoiceOptions::default() }).unwrap();
    let voice = Arc::new(Letters::default());
    let options = MouthOptions { ahead: Duration::from_millis(600), ..MouthOptions::default() };
    let mouth = || engine.mouth(Arc::clone(&voice) as _, options).unwrap();
    let (mut begins, mut speaks) = (mouth(), mouth());
    let steps = || voice.steps.load(Ordering::SeqCst);
    // A piece of 150 ms is paid by the next frames, so there is one in each call.
    let work_until = |count| {
        wait(|| {
            (0..40).for_each(|_| engine.frame());
            std::thread::sleep(Duration::from_millis(180));
            (steps() >= count).then_some(())
        });
    };
    speaks.say("~".repeat(30), self::options()).unwrap();
    // The times, and seven pieces: its ring is full.
    (2..=8).for_each(work_until);
    assert_eq!(speaks.take_reader().unwrap().read(&mut [0.0; 5000]), 5000);
    begins.say("b".to_owned(), self::options()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let before = steps();
    wait(|| {
        (0..40).for_each(|_| engine.frame());
        (steps() > before).then_some(())
    });
    voice.seeds.lock().unwrap().len() == 1
}

#[test]
fn a_budget_limits_the_work_of_a_frame() {
    let budget = Some(Duration::from_millis(5));
    let engine = VoiceEngine::new(&VoiceOptions { budget, ..VoiceOptions::default() }).unwrap();
    let voice = Arc::new(Letters { time: Duration::from_millis(10), ..Letters::default() });
    let ahead = Duration::from_secs(20);
    let options = MouthOptions { ahead, ..MouthOptions::default() };
    let mut mouth = engine.mouth(Arc::clone(&voice) as _, options).unwrap();
    mouth.say("a".repeat(100), self::options()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(voice.steps.load(Ordering::SeqCst), 0, "no frame yet");
    for frame in 1..=20 {
        engine.frame();
        std::thread::sleep(Duration::from_millis(15));
        let steps = voice.steps.load(Ordering::SeqCst);
        // A piece costs two frames at least; the begin of a sentence is a piece without a step.
        assert!(steps <= frame / 2 + 1, "{steps} pieces in {frame} frames");
    }
    let steps = voice.steps.load(Ordering::SeqCst);
    assert!(steps >= 3, "{steps}");
    engine.set_budget(None);
    wait(|| (voice.steps.load(Ordering::SeqCst) > steps + 5).then_some(()));
    assert!(engine.stats().busy >= Duration::from_millis(10) && engine.stats().pieces > 5);
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    let voice = Arc::new(Letters { time: Duration::from_millis(1), ..Letters::default() });
    let engine = engine();
    let mut mouth = engine.mouth(Arc::clone(&voice) as _, MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    mouth.say("a".repeat(1000), options()).unwrap();
    drop(engine);
    wait(|| (reader.read(&mut [0.0; 10]) > 0).then_some(()));
    drop(mouth);
    // The reader alone: stopped sentences are not heard, and nothing blocks.
    wait(|| (reader.read(&mut [0.0; 10]) == 0 && reader.is_idle()).then_some(()));
    drop(reader);
    wait(|| (Arc::strong_count(&voice) == 1).then_some(()));
    // A reader that is dropped first.
    let mut mouth = self::engine().mouth(Arc::clone(&voice) as _, MouthOptions::default()).unwrap();
    drop(mouth.take_reader());
    mouth.say("ab".to_owned(), options()).unwrap();
    drop(mouth);
    wait(|| (Arc::strong_count(&voice) == 1).then_some(()));
}

#[test]
fn a_voice_that_panics_in_a_drop_ends_its_mouth_alone() {
    // The drop of an utterance, and of both: two panics at once would abort the process.
    for has_two in [false, true] {
        let engine = engine();
        let mut good = engine.mouth(Arc::new(Letters::default()), MouthOptions::default()).unwrap();
        let mut good_reader = good.take_reader().unwrap();
        let voice = || {
            let dropped = Dropped(has_two);
            Arc::new(Defective { drop_panics: true, dropped, ..Defective::default() })
        };
        let mut bad = engine.mouth(voice(), MouthOptions::default()).unwrap();
        let mut reader = bad.take_reader().unwrap();
        good.say("ab".to_owned(), options()).unwrap();
        assert!(!bad.has_ended());
        bad.say("x".to_owned(), options()).unwrap();
        wait(|| bad.has_ended().then_some(()));
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(_)) = bad.poll_event(&mut context) {}
        assert!(matches!(bad.poll_event(&mut context), Poll::Ready(None)));
        let refused = bad.say("y".to_owned(), options());
        assert!(matches!(refused, Err(SayError::Stopped(text)) if text == "y"));
        // The finished part is played: less than its prebuffer.
        assert!(!read_all(&bad, &mut reader).is_empty());
        assert!(reader.is_idle() && reader.read(&mut [0.0; 10]) == 0);
        assert!(matches!(reader.poll_read(&mut context, &mut [0.0; 10]), Poll::Ready(0)));
        let underruns = bad.underrun_samples();
        reader.read(&mut [0.0; 1000]);
        assert_eq!(bad.underrun_samples(), underruns);
        // Also of a mouth whose sentence is dropped with it.
        let mut dropped = engine.mouth(voice(), MouthOptions::default()).unwrap();
        dropped.say("x".to_owned(), options()).unwrap();
        drop(dropped);
        assert!(read_all(&good, &mut good_reader) == letters("ab"));
        good.say("c".to_owned(), options()).unwrap();
        assert!(read_all(&good, &mut good_reader) == letters("c"));
    }
}

#[test]
fn the_rate_of_a_voice_is_asked_once_and_checked() {
    let engine = engine();
    for rate in [0, 1, 3_999, 384_001, 4_000_000_000] {
        let voice = Arc::new(Defective { rate, ..Defective::default() });
        let mouth = engine.mouth(voice, MouthOptions::default());
        assert!(matches!(mouth, Err(VoiceError::Option { name: "sample_rate", .. })), "{rate}");
    }
    let voice = Arc::new(Defective { rates: 0.into(), ..Defective::default() });
    let mouth = engine.mouth(voice, MouthOptions::default());
    assert!(matches!(mouth, Err(VoiceError::Failed(_))));
    let voice = Arc::new(Defective { rates: 1.into(), rate: 4_000, ..Defective::default() });
    let mut mouth = engine.mouth(voice, MouthOptions::default()).unwrap();
    let reader = mouth.take_reader().unwrap();
    assert_eq!([mouth.sample_rate(), mouth.sample_rate(), reader.sample_rate()], [4_000; 3]);
}

#[test]
fn a_sentence_with_wrong_times_fails() {
    let word = |value, start, end| Timed { value, start, end };
    for words in [
        vec![word(0..1, 20, 10)],
        vec![word(0..1, 10, 20), word(1..2, 0, 5)],
        vec![word(0..1, 0, u64::MAX)],
        vec![word(0..3, 0, 5)],
    ] {
        let plans = vec![Timing { words, ..Timing::default() }];
        let voice = Arc::new(Defective { plans, ..Defective::default() });
        let mut mouth = engine().mouth(voice, MouthOptions::default()).unwrap();
        let mut reader = mouth.take_reader().unwrap();
        mouth.say("ab".to_owned(), options()).unwrap();
        let failed = event(&mut mouth);
        assert!(matches!(failed, MouthEvent::Failed { error: VoiceError::Failed(_), .. }));
        assert!(read_all(&mouth, &mut reader).is_empty());
    }
}

#[test]
fn samples_that_are_not_finite_are_silence() {
    for (level, heard) in [(f32::NAN, 0.0), (f32::INFINITY, 0.0), (-3.0, -1.0)] {
        let voice = Arc::new(Defective { level, ..Defective::default() });
        let mut mouth = engine().mouth(voice, MouthOptions::default()).unwrap();
        let mut reader = mouth.take_reader().unwrap();
        mouth.say("a".to_owned(), options()).unwrap();
        assert_eq!(read_all(&mouth, &mut reader), [heard; PIECE]);
    }
}

#[test]
fn many_mouths_are_made_at_once() {
    let engine = engine();
    let voice = Arc::new(Letters::default());
    let options = MouthOptions { ahead: Duration::from_millis(100), ..MouthOptions::default() };
    let mut first = engine.mouth(Arc::clone(&voice) as _, options).unwrap();
    first.say("~".to_owned(), self::options()).unwrap();
    // The slow letter holds the thread.
    wait(|| (voice.steps.load(Ordering::SeqCst) == 2).then_some(()));
    let mouths: Vec<_> =
        (0..400).map(|_| engine.mouth(Arc::clone(&voice) as _, options).unwrap()).collect();
    assert_eq!(mouths.len(), 400);
}

#[test]
fn handles_may_be_shared() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<VoiceEngine>();
    is_shared::<Mouth>();
    is_shared::<MouthReader>();
    is_shared::<Ear>();
    is_shared::<Microphone>();
}

#[test]
fn sentences_behind_one_are_stopped_alone() {
    let mut mouth = engine().mouth(Arc::new(Letters::default()), MouthOptions::default()).unwrap();
    let mut reader = mouth.take_reader().unwrap();
    for round in 0..3 {
        let [first, ..] =
            ["ab", "cd", "ef"].map(|text| mouth.say(text.to_owned(), options()).unwrap());
        // In the ring, in work, or not begun.
        std::thread::sleep(Duration::from_millis(10 * round));
        mouth.stop_after(first);
        mouth.stop_after(first);
        mouth.say("gh".to_owned(), options()).unwrap();
        assert_eq!(read_all(&mouth, &mut reader), letters("abgh"), "round {round}");
    }
    assert!(mouth.has_reader());
    drop(reader);
    assert!(!mouth.has_reader());
}
