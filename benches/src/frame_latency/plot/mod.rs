//! Plots of the results, each as PNG and SVG.

mod budget;
mod percentiles;
mod timeline;

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::register_font;

use crate::args::Mode;
use crate::cell::Cell;
use crate::report::{Results, has_device_time};
use crate::run::Outcome;

/// Drawing area of a plot.
type Area<'a, DB> = DrawingArea<DB, Shift>;

/// Result of drawing.
type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

/// A plot over numbers.
type Chart<'a, DB> = ChartContext<'a, DB, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The font of all text: registered for PNG; an SVG viewer uses its own.
const FONT: &str = "sans-serif";

/// Colour of axes and text.
const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Colour of limits.
const LIMIT: RGBColor = RGBColor(0, 0, 0);

/// A plot.
trait Picture {
    /// Width and height in pixels, at scale 1.
    fn size(&self) -> (u32, u32);
    fn draw<DB: DrawingBackend>(&self, area: &Area<'_, DB>, look: Look) -> Drawn<DB>;
}

/// Scale of all sizes: a PNG is drawn at twice the size, so that text is sharp on displays with low
/// resolution.
#[derive(Clone, Copy)]
struct Look {
    scale: i32,
}

impl Look {
    fn px(self, pixels: i32) -> i32 {
        pixels * self.scale
    }

    fn stroke(self, width: u32) -> u32 {
        width * self.scale.unsigned_abs()
    }

    fn at(self, x: i32, y: i32) -> (i32, i32) {
        (x * self.scale, y * self.scale)
    }

    fn text(self, size: i32) -> TextStyle<'static> {
        (FONT, size * self.scale).into_font().color(&INK)
    }
}

/// Axes from zero, under a title.
fn chart<'a, DB: DrawingBackend>(
    area: &'a Area<'_, DB>,
    title: &str,
    (max_x, max_y): (f64, f64),
    look: Look,
) -> Result<Chart<'a, DB>, DrawingAreaErrorKind<DB::ErrorType>> {
    ChartBuilder::on(area)
        .caption(title, look.text(26))
        .margin(look.px(16))
        .margin_right(look.px(28))
        .x_label_area_size(look.px(56))
        .y_label_area_size(look.px(72))
        .build_cartesian_2d(0.0..max_x, 0.0..max_y)
}

/// A dashed horizontal line for a limit.
fn limit<'a, DB: DrawingBackend + 'a>(
    chart: &mut Chart<'a, DB>,
    y: f64,
    width: u32,
    look: Look,
) -> Drawn<DB> {
    let sides = chart.x_range();
    chart.draw_series(DashedLineSeries::new(
        [(sides.start, y), (sides.end, y)],
        look.px(6),
        look.px(5),
        LIMIT.stroke_width(look.stroke(width)),
    ))?;
    Ok(())
}

/// The legend of the colours; `width` is the width of a sample.
fn legend<'a, DB: DrawingBackend + 'a>(
    chart: &mut Chart<'a, DB>,
    width: i32,
    look: Look,
) -> Drawn<DB> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(look.px(14))
        .legend_area_size(look.px(width))
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font(look.text(18))
        .draw()
}

/// Colours that are distinguishable with any kind of colour vision (Okabe and Ito, 2008).
fn color(mode: Mode) -> RGBColor {
    match mode {
        Mode::Off => RGBColor(120, 120, 120),
        Mode::Walla => RGBColor(0, 114, 178),
        Mode::WallaNoOverlap => RGBColor(230, 159, 0),
        Mode::Blocking => RGBColor(213, 94, 0),
        Mode::Llama => RGBColor(204, 121, 167),
    }
}

/// Label of a mode.
fn label(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "game alone",
        Mode::Walla => "walla",
        Mode::WallaNoOverlap => "walla, each frame waits",
        Mode::Blocking => "blocking step in the frame",
        Mode::Llama => "llama.cpp beside the game",
    }
}

/// Draws every plot that has enough results.
pub fn draw(results: &Results<'_>) -> Result<(), Box<dyn Error>> {
    let font = epaint_default_fonts::UBUNTU_LIGHT;
    register_font(FONT, FontStyle::Normal, font).map_err(|_| "the font is none")?;
    for group in groups(results) {
        let [first, ..] = group.outcomes[..] else { continue };
        let name = |what: &str| {
            let device = first.cell.device.replace(':', "");
            let Cell { rate, .. } = first.cell;
            format!("{what}-{device}-{rate}hz-{}", group.agents)
        };
        let out = &results.arguments.out;
        save(&percentiles::Percentiles::of(&group), &out.join(name("percentiles")))?;
        save(&timeline::Timeline::of(&group), &out.join(name("timeline")))?;
    }
    for (name, picture) in budget::Budgets::all(results) {
        save(&picture, &results.arguments.out.join(name))?;
    }
    Ok(())
}

/// Runs that differ only in their mode, including the game alone.
struct Group<'a> {
    agents: usize,
    outcomes: Vec<&'a Outcome>,
}

impl Group<'_> {
    fn title(&self) -> String {
        let Some(outcome) = self.outcomes.first() else { return String::new() };
        let Cell { device, rate, .. } = &outcome.cell;
        format!("{} agents, {rate} Hz, {device}", self.agents)
    }
}

fn groups<'a>(results: &Results<'a>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for outcome in results.outcomes.iter().filter(|outcome| outcome.cell.mode != Mode::Off) {
        let cell = &outcome.cell;
        let same = |group: &&mut Group<'a>| {
            group.agents == cell.agents
                && group.outcomes.last().is_some_and(|last| {
                    last.cell.rate == cell.rate && last.cell.device == cell.device
                })
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.outcomes.push(outcome),
            None => {
                let alone = results.outcomes.iter().find(|other| {
                    let other = &other.cell;
                    other.mode == Mode::Off
                        && (other.rate, &other.device) == (cell.rate, &cell.device)
                });
                let outcomes = alone.into_iter().chain([outcome]).collect();
                groups.push(Group { agents: cell.agents, outcomes });
            }
        }
    }
    groups
}

/// Writes `stem.svg` and `stem.png`.
fn save(picture: &impl Picture, stem: &Path) -> Result<(), Box<dyn Error>> {
    let size = picture.size();
    let path = |ending: &str| {
        let mut name = stem.file_name().unwrap_or_default().to_owned();
        name.push(ending);
        stem.with_file_name(name)
    };
    let svg = path(".svg");
    let area = SVGBackend::new(&svg, size).into_drawing_area();
    picture.draw(&area, Look { scale: 1 }).map_err(|error| error.to_string())?;
    area.present()?;
    drop(area);

    let scale = 2;
    let size = (size.0 * scale, size.1 * scale);
    let mut pixels = vec![255; size.0 as usize * size.1 as usize * 3];
    let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
    picture.draw(&area, Look { scale: scale as i32 }).map_err(|error| error.to_string())?;
    area.present()?;
    drop(area);
    let mut encoder =
        png::Encoder::new(BufWriter::new(File::create(path(".png"))?), size.0, size.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(())
}

/// A round number at or above `value`: 1, 2, 2.5, 4, 5 or 8 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-6).log10().floor());
    let steps = [1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|&step| step >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0.3, 7.1, 16.7, 41.0].map(round_up), [0.4, 8.0, 20.0, 50.0]);
    }
}
