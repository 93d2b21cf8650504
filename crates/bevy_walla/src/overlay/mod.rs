//! Cost and activity of walla, drawn over the game (feature `overlay`).
//!
//! A panel in a corner shows the device time of a frame against its budget, agents by state, tokens
//! per second, times to the first token, and a histogram of the game's own frame times, which
//! dialogue must not affect. A key shows and hides it.
//!
//! ```no_run
//! # use bevy_app::App;
//! use bevy_walla::overlay::WallaOverlayPlugin;
//! use bevy_walla::prelude::*;
//! App::new()
//!     .add_plugins((WallaPlugin::default(), WallaOverlayPlugin::default())) // beside DefaultPlugins with `ui`
//!     .run();
//! ```
//! It only reads [`Walla`](crate::Walla), [`Speech`](crate::Speech),
//! [`ReplyFinished`](crate::ReplyFinished) and the clock. Counting takes well under a microsecond
//! per frame and allocates nothing. Texts and bars change a few times a second
//! ([`WallaOverlay::refreshes_per_second`]), and not at all while the panel is hidden.
//!
//! | line | meaning |
//! |---|---|
//! | `0.70 of 4.17 ms a frame, longest 1.40` | device time of the frames since the last refresh, against the budget; the bar is its mean |
//! | `in budget 99.98 % of 5031 frames` | since the engine's start |
//! | `11 agents: 3 talking, 8 silent` | agents by state, also as a bar |
//! | `22 tokens/s   step 0.92 ms   plugin 18 µs` | all agents together; the latest step; host time of the plugin's systems in the latest frame |
//! | `first token 84 ms   mean 62   max 412` | from an ask's arrival at the engine to its first token: of the reply that ended last, and of the latest 64; absent before the first reply |
//! | `wait 312, encode 1, prefill 90, decode 9` | the parts of the longest of them, in milliseconds ([`FirstTokenTimes`](crate::reply::FirstTokenTimes)) |
//! | `background prefill 1200 tokens/s` | prompts of idle agents, for all agents together; absent if there was none since the engine's start |
//! | `voice 104 ms/s   longest piece 26 ms` | computing time of speech, and its longest piece of work; absent without `WallaVoicePlugin` |
//! | `frame 16.7 ms   p99 16.9   max 17.4` | of the latest 256 frames, as in the histogram below (heights are logarithmic) |

mod meter;
mod panel;
mod refresh;

use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::prelude::*;
use bevy_input::keyboard::KeyCode;
use bevy_input::{ButtonInput, InputSystems};
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};

use crate::reply::ReplyFinished;
use crate::systems::WallaSystems;

/// Draws [`WallaOverlay`]. It needs Bevy's `UiPlugin` and its renderer to be visible; without them
/// it only counts.
#[derive(Clone, Debug, Default)]
pub struct WallaOverlayPlugin {
    /// Initial settings. They replace a resource [`WallaOverlay`] that was inserted before the
    /// plugin. Default: `None`, this resource, otherwise [`WallaOverlay::default`].
    pub overlay: Option<WallaOverlay>,
}

/// Settings of the overlay, as a resource. They can be changed at any time.
#[derive(Resource, Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Resource, Default, Clone, Debug, PartialEq)
)]
pub struct WallaOverlay {
    /// Whether it is shown. Default: `true`.
    pub visible: bool,
    /// Key that shows and hides it, if there is a keyboard. Default: F3, as in other games. `None`:
    /// the game uses [`ToggleWallaOverlay`] or `visible`.
    pub toggle_key: Option<KeyCode>,
    /// Refreshes of texts and bars per second. Default: `5.0`, a readable rate; clamped to 1 to 10.
    pub refreshes_per_second: f32,
    /// Its corner. Default: top right.
    pub corner: OverlayCorner,
}

/// A corner of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Default, Clone, Debug, PartialEq, Hash))]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum OverlayCorner {
    TopLeft,
    #[default]
    TopRight,
    BottomLeft,
    BottomRight,
}

/// Shows the overlay if it is hidden, hides it if it is shown: write it as a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Message)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(Message, Default, Clone, Debug, PartialEq)
)]
pub struct ToggleWallaOverlay;

impl Default for WallaOverlay {
    fn default() -> Self {
        Self {
            visible: true,
            toggle_key: Some(KeyCode::F3),
            refreshes_per_second: 5.0,
            corner: OverlayCorner::default(),
        }
    }
}

impl WallaOverlay {
    /// Time between two refreshes.
    fn period(&self) -> Duration {
        let rate = self.refreshes_per_second;
        // Not a number counts as the lowest rate.
        Duration::from_secs_f32(if rate >= 1.0 { rate.min(10.0).recip() } else { 1.0 })
    }
}

impl Plugin for WallaOverlayPlugin {
    fn build(&self, app: &mut App) {
        match &self.overlay {
            Some(overlay) => app.insert_resource(overlay.clone()),
            None => app.init_resource::<WallaOverlay>(),
        };
        app.init_resource::<meter::Meters>()
            .add_message::<ReplyFinished>()
            .add_message::<ToggleWallaOverlay>()
            .add_systems(Startup, panel::spawn)
            .add_systems(
                PreUpdate,
                (toggle.after(InputSystems), refresh::count.after(WallaSystems::Publish)),
            )
            .add_systems(Update, (panel::place, refresh::refresh).chain());
        #[cfg(feature = "reflect")]
        app.register_type::<WallaOverlay>()
            .register_type::<OverlayCorner>()
            .register_type::<ToggleWallaOverlay>();
    }
}

fn toggle(
    keys: Option<Res<ButtonInput<KeyCode>>>,
    mut asked: MessageReader<ToggleWallaOverlay>,
    mut overlay: ResMut<WallaOverlay>,
) {
    let pressed = overlay.toggle_key.zip(keys).is_some_and(|(key, keys)| keys.just_pressed(key));
    if (asked.read().count() + usize::from(pressed)) % 2 == 1 {
        overlay.visible = !overlay.visible;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refresh_rate_is_clamped_to_1_to_10_hz() {
        let period = |rate| {
            WallaOverlay { refreshes_per_second: rate, ..Default::default() }.period().as_millis()
        };
        assert_eq!(period(5.0), 200);
        assert_eq!(period(1_000.0), 100);
        for slow in [0.0, -1.0, f32::NAN] {
            assert_eq!(period(slow), 1_000);
        }
    }
}
