//! Detectors of speech.

use std::fmt;
use std::path::Path;

use rten::{NodeId, Value};

use crate::error::VoiceError;
use crate::onnx::{self, Network};
use crate::recognizer::{HEARING_RATE, VoiceActivity};

/// Frames after a reset whose result is not reliable when there is noise.
const FIRST_FRAMES: u32 = 12;

/// The detector of the crate `earshot`, whose network is in the program: frames of 16 ms, which
/// cost 5 µs each. It takes some tones and music for speech; [`Silero`] does not.
pub struct Earshot {
    detector: Box<earshot::Detector>,
    /// Frames since the reset, at most [`FIRST_FRAMES`].
    frames: u32,
}

impl Default for Earshot {
    fn default() -> Self {
        Self { detector: earshot::Detector::default_boxed(), frames: 0 }
    }
}

impl fmt::Debug for Earshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Earshot").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl VoiceActivity for Earshot {
    fn frame_samples(&self) -> usize {
        256
    }

    fn push(&mut self, frame: &[f32]) -> Result<f32, VoiceError> {
        if frame.len() != self.frame_samples() {
            return Err(wrong_frame(frame.len()));
        }
        // A sample that is not finite would stay in the detector's state.
        let is_finite = frame.iter().all(|sample| sample.is_finite());
        let probability = if is_finite { self.detector.predict_f32(frame) } else { 0.0 };
        if self.frames < FIRST_FRAMES {
            self.frames += 1;
            return Ok(0.0);
        }
        Ok(probability)
    }

    fn reset(&mut self) {
        self.detector.reset();
        self.frames = 0;
    }
}

/// Samples of a frame of Silero, and those before it that it needs too.
const SILERO: [usize; 2] = [512, 64];
const SILERO_STATE: [usize; 3] = [2, 1, 128];

/// The Silero detector, version 5 or later, from its ONNX file: frames of 32 ms, which cost 130 µs
/// each. Tones and music are no speech to it.
#[derive(Debug)]
pub struct Silero {
    network: Network,
    /// Input, state, rate, probability, next state.
    nodes: [NodeId; 5],
    state: Vec<f32>,
    /// The context and the frame.
    window: Vec<f32>,
}

impl Silero {
    /// Loads the network.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged or another network.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, VoiceError> {
        let path = path.as_ref();
        let bytes = onnx::read_network(path)?;
        let names = ["input", "state", "sr", "output", "stateN"];
        let (network, nodes) = Network::load(bytes, onnx::pool(1), names)
            .map_err(|reason| VoiceError::model(path, reason))?;
        let state = vec![0.0; SILERO_STATE.iter().product()];
        let mut silero = Self { network, nodes, state, window: vec![0.0; SILERO.iter().sum()] };
        // Another network fails here, not at the first frame.
        silero.push(&[0.0; SILERO[0]]).map_err(|error| VoiceError::model(path, error))?;
        silero.reset();
        Ok(silero)
    }
}

impl VoiceActivity for Silero {
    fn frame_samples(&self) -> usize {
        SILERO[0]
    }

    fn push(&mut self, frame: &[f32]) -> Result<f32, VoiceError> {
        if frame.len() != SILERO[0] {
            return Err(wrong_frame(frame.len()));
        }
        self.window.drain(..SILERO[0]);
        let finite = |sample: &f32| if sample.is_finite() { *sample } else { 0.0 };
        self.window.extend(frame.iter().map(finite));
        let [input, state, rate, output, next_state] = self.nodes;
        let sample_rate = Value::from_shape([], vec![HEARING_RATE as i32]);
        let sample_rate = sample_rate.map_err(|error| VoiceError::Failed(error.to_string()))?;
        let inputs = vec![
            (input, onnx::view([1, self.window.len()], &self.window)?),
            (state, onnx::view(SILERO_STATE, &self.state)?),
            (rate, sample_rate.into()),
        ];
        let [output, next_state] = self.network.run(inputs, [output, next_state])?;
        let (_, next_state) = onnx::floats(next_state)?;
        if next_state.len() != self.state.len() {
            return Err(VoiceError::Failed("a state of another size".to_owned()));
        }
        self.state = next_state;
        let (_, output) = onnx::floats(output)?;
        let probability = output.first().copied().filter(|output| output.is_finite());
        Ok(probability.unwrap_or_default().clamp(0.0, 1.0))
    }

    fn reset(&mut self) {
        self.state.fill(0.0);
        self.window.fill(0.0);
    }
}

fn wrong_frame(samples: usize) -> VoiceError {
    VoiceError::Failed(format!("a frame of {samples} samples"))
}
