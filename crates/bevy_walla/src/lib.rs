//! Bevy plugin: every NPC's or robot's dialogue as one batch a frame, without blocking the frame.
