use std::time::Instant;
use walla_voice::*;
fn main() {
    let voice = Piper::load("target/voice/en_US-joe-medium.onnx", PiperOptions::default()).unwrap();
    let text = "The guard at the gate asks for your name and your business in the city, and he wants to see your hands.";
    let options = SpeakOptions { speed: 0.8, ..SpeakOptions::default() };
    let mut u = std::sync::Arc::clone(&voice).begin(text, &options).unwrap();
    let mut out = Vec::new();
    while u.step(&mut out).unwrap() != Step::Ended {}
    let mut samples = Vec::new();
    Resampler::new(22050, 16000).push(&out, &mut samples);
    let whisper =
        Whisper::load(std::env::args().nth(1).unwrap(), WhisperOptions::default()).unwrap();
    for _ in 0..4 {
        let mut r =
            std::sync::Arc::clone(&whisper).begin(&samples, &RecognizeOptions::default()).unwrap();
        let mut times = Vec::new();
        let t = loop {
            let t = Instant::now();
            let step = r.step().unwrap();
            times.push(t.elapsed().as_secs_f64() * 1e3);
            if let Some(t) = step {
                break t;
            }
        };
        let total: f64 = times.iter().sum();
        println!(
            "{:.4} s/s {} {:?}",
            total / 1e3 / (samples.len() as f64 / 16e3),
            t.text,
            times.iter().map(|t| (t * 10.0).round() / 10.0).collect::<Vec<_>>()
        );
    }
    let mut a = Earshot::default();
    let t = Instant::now();
    for c in samples.chunks_exact(256) {
        a.push(c).unwrap();
    }
    println!("detector {:.5} s/s", t.elapsed().as_secs_f64() / (samples.len() as f64 / 16e3));
}
