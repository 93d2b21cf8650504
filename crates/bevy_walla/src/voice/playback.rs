//! Voices by `bevy_audio`.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use bevy_app::prelude::*;
use bevy_asset::{Asset, Assets};
use bevy_audio::{
    AddAudioSource, AudioPlayer, ChannelCount, Decodable, PlaybackSettings, Sample, SampleRate,
    Source,
};
use bevy_ecs::prelude::*;
use bevy_reflect::TypePath;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use bevy_transform::components::Transform;
use walla_voice::MouthReader;

use super::speaking::{ReaderSlot, Speaking};
use crate::systems::WallaSystems;

/// Samples that are read at once, about 12 ms.
const BLOCK: usize = 256;

/// Plays the voices of all agents with `bevy_audio`. It needs its `AudioPlugin`, and
/// [`WallaVoicePlugin`](super::WallaVoicePlugin).
///
/// Each voice is a child of its agent, [`VoiceOutput`]. With [`SpatialVoice`] it is where the agent
/// is. Without a sound device the voices go on at the pace of the time, unheard.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallaVoicePlaybackPlugin;

/// The voice of this agent comes from its place: it needs a `GlobalTransform`, and one entity with
/// `bevy_audio`'s `SpatialListener`. A change applies with the next voice.
#[derive(Component, Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Clone, Debug))]
pub struct SpatialVoice;

/// A child of an agent that plays its voice: it has `bevy_audio`'s sink, for volume and mute.
#[derive(Component, Clone, Debug, Default)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Component, Default, Clone, Debug))]
pub struct VoiceOutput {
    #[cfg_attr(feature = "reflect", reflect(ignore))]
    reader: ReaderSlot,
}

/// The stream of a voice as an asset.
#[derive(Asset, TypePath, Clone, Debug)]
pub struct VoiceStream {
    reader: ReaderSlot,
}

impl Decodable for VoiceStream {
    type Decoder = VoiceDecoder;

    fn decoder(&self) -> VoiceDecoder {
        VoiceDecoder { reader: self.reader.take(), block: [0.0; BLOCK], next: BLOCK }
    }
}

/// The samples of a voice: silence between its sentences, and the end when the agent has lost it.
#[derive(Debug)]
pub struct VoiceDecoder {
    reader: Option<MouthReader>,
    block: [f32; BLOCK],
    next: usize,
}

impl Iterator for VoiceDecoder {
    type Item = Sample;

    fn next(&mut self) -> Option<Sample> {
        let reader = self.reader.as_mut()?;
        if self.next >= BLOCK {
            if reader.has_ended() {
                return None;
            }
            reader.read(&mut self.block);
            self.next = 0;
        }
        let sample = self.block.get(self.next).copied();
        self.next += 1;
        sample
    }
}

impl Source for VoiceDecoder {
    fn current_span_len(&self) -> Option<usize> {
        None
    }

    fn channels(&self) -> ChannelCount {
        NonZeroU16::MIN
    }

    fn sample_rate(&self) -> SampleRate {
        let rate = self.reader.as_ref().map_or(0, MouthReader::sample_rate);
        NonZeroU32::new(rate).unwrap_or(NonZeroU32::MIN)
    }

    fn total_duration(&self) -> Option<Duration> {
        None
    }
}

/// Voices that play.
type Outputs = (Entity, &'static VoiceOutput, &'static ChildOf);

/// Gives each new voice a player.
fn play(
    agents: Query<(Entity, &Speaking, Has<SpatialVoice>)>,
    outputs: Query<Outputs>,
    mut streams: ResMut<Assets<VoiceStream>>,
    mut commands: Commands,
) {
    for (agent, speaking, is_spatial) in &agents {
        if !speaking.reader.is_full() {
            continue;
        }
        let of_agent = outputs.iter().filter(|(.., child_of)| child_of.parent() == agent);
        let mut has_player = false;
        for (player, output, _) in of_agent {
            if output.reader.is(&speaking.reader) {
                has_player = true;
            } else {
                commands.entity(player).despawn();
            }
        }
        if !has_player {
            let reader = speaking.reader.clone();
            let stream = streams.add(VoiceStream { reader: reader.clone() });
            let settings = PlaybackSettings::DESPAWN.with_spatial(is_spatial);
            let output = VoiceOutput { reader };
            let mut player =
                commands.spawn((output, AudioPlayer(stream), settings, ChildOf(agent)));
            if is_spatial {
                player.insert(Transform::default());
            }
        }
    }
}

impl Plugin for WallaVoicePlaybackPlugin {
    fn build(&self, app: &mut App) {
        app.add_audio_source::<VoiceStream>()
            .add_systems(Update, play.after(WallaSystems::Publish));
        #[cfg(feature = "reflect")]
        app.register_type::<SpatialVoice>().register_type::<VoiceOutput>();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use walla_voice::{
        MouthOptions, SpeakOptions, SpeechSynthesizer, Step, Utterance, VoiceEngine, VoiceError,
        VoiceOptions,
    };

    use super::*;

    /// A hundred samples of 0.5.
    #[derive(Debug)]
    struct Tone(bool);

    impl SpeechSynthesizer for Tone {
        fn sample_rate(&self) -> u32 {
            8_000
        }

        fn begin(
            self: Arc<Self>,
            _: &str,
            _: &SpeakOptions,
        ) -> Result<Box<dyn Utterance>, VoiceError> {
            Ok(Box::new(Self(false)))
        }
    }

    impl Utterance for Tone {
        fn step(&mut self, out: &mut Vec<f32>) -> Result<Step, VoiceError> {
            out.extend([0.5; 50]);
            Ok(if std::mem::replace(&mut self.0, true) { Step::Ended } else { Step::Working })
        }
    }

    #[test]
    fn a_stream_has_the_speech_and_ends_with_the_voice() {
        let engine = VoiceEngine::new(&VoiceOptions::default()).unwrap();
        let mut mouth = engine.mouth(Arc::new(Tone(false)), MouthOptions::default()).unwrap();
        let reader = ReaderSlot::new(mouth.take_reader());
        assert!(reader.is_full());
        let mut decoder = VoiceStream { reader: reader.clone() }.decoder();
        assert!(!reader.is_full() && decoder.sample_rate().get() == 8_000);
        mouth.say("A.".to_owned(), SpeakOptions::default()).unwrap();
        let mut heard = 0;
        while heard < 100 {
            heard += usize::from(decoder.next() == Some(0.5));
        }
        assert_eq!(decoder.next(), Some(0.0), "silence, not the end");
        drop(mouth);
        assert!(decoder.by_ref().take(BLOCK + 1).count() <= BLOCK, "the voice is gone");
        // Its player has taken it.
        assert_eq!(VoiceStream { reader }.decoder().next(), None);
    }
}
