use std::sync::Arc;
use std::time::{Duration, Instant};
use walla_voice::*;
const QUESTIONS: [&str; 10] = [
    "What does a horseshoe cost?",
    "Good morning, how are you today?",
    "Where do you come from?",
    "Have you heard any news?",
    "Do you sell swords?",
    "Who is the guard at the gate?",
    "Can you repair my shield?",
    "What is your name?",
    "Is it going to rain tonight?",
    "I would like to buy some nails.",
];
fn main() {
    let voice = Piper::load("target/voice/en_US-joe-medium.onnx", PiperOptions::default()).unwrap();
    let whisper = Whisper::load("target/voice/tiny.en", WhisperOptions::default()).unwrap();
    let eager: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
    for (turn, text) in QUESTIONS.iter().enumerate() {
        let options = SpeakOptions { seed: turn as u64, ..SpeakOptions::default() };
        let mut u = Arc::clone(&voice).begin(text, &options).unwrap();
        let (mut out, mut timing) = (Vec::new(), Timing::default());
        loop {
            match u.step(&mut out).unwrap() {
                Step::Ended => break,
                Step::Planned(t) => timing.append(t),
                _ => {}
            }
        }
        let end = timing.words.last().unwrap().end;
        let mut heard = vec![0.0; 8000];
        let end = 8000 + (end * 16000 / 22050) as usize;
        Resampler::new(22050, 16000).push(&out, &mut heard);
        heard.resize(heard.len() + 24000, 0.0);
        // energy end
        let mut last = 0;
        for (i, w) in heard.chunks(160).enumerate() {
            let e: f32 = w.iter().map(|s| s * s).sum::<f32>() / 160.0;
            if e > 1e-4 {
                last = i * 160 + 160;
            }
        }
        let mut det = Earshot::default();
        let mut vad_end = 0;
        for (i, c) in heard.chunks_exact(256).enumerate() {
            if det.push(c).unwrap() >= 0.35 {
                vad_end = (i + 1) * 256;
            }
        }
        let options = EarOptions {
            eager_silence: Some(Duration::from_millis(eager)),
            ..EarOptions::default()
        };
        let (mut ear, mut mic) =
            engine.ear(Arc::clone(&whisper) as _, Box::new(Earshot::default()), options).unwrap();
        let begin = Instant::now();
        let ms = |at: usize| at as f64 / 16.0;
        let mut line = format!(
            "{text}: word end 0, energy end {:.0}, vad end {:.0};",
            ms(last) - ms(end),
            ms(vad_end) - ms(end)
        );
        for (i, b) in heard.chunks(160).enumerate() {
            while begin.elapsed() < Duration::from_millis(10 * (i as u64 + 1)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            mic.push(b, 16000);
            while let Some(e) = ear.try_event() {
                let t = begin.elapsed().as_secs_f64() * 1e3 - ms(end);
                match e {
                    EarEvent::Partial { text } => line += &format!(" {t:.0}: partial {text:?}"),
                    EarEvent::Final { transcript, .. } => {
                        line += &format!(
                            " {t:.0}: FINAL {:?} {:.2}",
                            transcript.text, transcript.log_probability
                        )
                    }
                    EarEvent::Begun { .. } => {}
                    e => line += &format!(" {t:.0}: {e:?}"),
                }
            }
        }
        println!("{line}");
    }
}
