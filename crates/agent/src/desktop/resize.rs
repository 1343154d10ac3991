//! Another size for the screen, while it runs: RANDR gets a mode of that size, the way `xrandr` does it.

use x11rb::protocol::randr::{
    ConnectionExt as _, GetCrtcInfoReply, GetScreenResourcesCurrentReply, ModeInfo, Rotation, SetConfig,
};
use x11rb::protocol::xproto::ConnectionExt as _;

use super::fault::XError;
use super::hand::Hand;

/// Of a usual screen; programs compute the size of text from it.
const DOTS_PER_INCH: f64 = 96.0;
const MILLIMETRES_PER_INCH: f64 = 25.4;
/// Modes made here, by their names.
const OURS: &[u8] = b"superserve-";
/// A server lists few; more is nonsense.
const MAX_MODES: usize = 4096;

/// What shows the screen.
struct Head {
    crtc: u32,
    output: u32,
    before: GetCrtcInfoReply,
    resources: GetScreenResourcesCurrentReply,
}

impl Hand {
    /// Gives the screen a size. Other programs see it change once.
    pub(super) fn resize(&mut self, width: u16, height: u16) -> Result<(), XError> {
        self.link.begin();
        let size = self.link.x.get_geometry(self.link.root)?.reply()?;
        if (size.width, size.height) == (width, height) {
            return Ok(());
        }
        self.link.x.randr_query_version(1, 3)?.reply()?;
        let range = self.link.x.randr_get_screen_size_range(self.link.root)?.reply()?;
        let fits = (range.min_width..=range.max_width).contains(&width)
            && (range.min_height..=range.max_height).contains(&height);
        if !fits {
            let (most, least) = ((range.max_width, range.max_height), (range.min_width, range.min_height));
            return Err(XError::Refused(format!(
                "this X server takes {}x{} to {}x{}",
                least.0, least.1, most.0, most.1
            )));
        }
        let head = self.head()?;
        let mode = self.mode(&head, width, height)?;
        self.link.x.grab_server()?;
        let changed = self.change(&head, mode, width, height);
        if changed.is_err() {
            // As it was, as far as that is possible.
            // The size first: the mode has to fit into it.
            let _ = self.screen_size(size.width, size.height);
            let _ = self.set(&head, head.before.mode);
        }
        self.link.x.ungrab_server()?;
        self.link.sync()?;
        changed?;
        self.forget_modes(&head, mode)?;
        self.link.sync()?;
        let size = self.link.x.get_geometry(self.link.root)?.reply()?;
        if (size.width, size.height) == (width, height) {
            Ok(())
        } else {
            Err(XError::Refused(format!("the screen has {}x{} pixels now", size.width, size.height)))
        }
    }

    fn head(&self) -> Result<Head, XError> {
        let (x, root) = (&self.link.x, self.link.root);
        let resources = x.randr_get_screen_resources_current(root)?.reply()?;
        if resources.modes.len() > MAX_MODES {
            return Err(XError::Lost("it has too many modes".to_owned()));
        }
        for crtc in resources.crtcs.iter().copied() {
            let before = x.randr_get_crtc_info(crtc, resources.config_timestamp)?.reply()?;
            if let Some(output) = before.outputs.first().copied() {
                return Ok(Head { crtc, output, before, resources });
            }
        }
        Err(XError::Refused("the screen is not shown anywhere".to_owned()))
    }

    /// A mode of that size which the output has.
    fn mode(&self, head: &Head, width: u16, height: u16) -> Result<u32, XError> {
        let (x, root) = (&self.link.x, self.link.root);
        let fits = |mode: &&ModeInfo| (mode.width, mode.height) == (width, height);
        let offered = x.randr_get_output_info(head.output, head.resources.config_timestamp)?.reply()?.modes;
        let known = head.resources.modes.iter().filter(fits).map(|mode| mode.id);
        if let Some(mode) = known.clone().find(|mode| offered.contains(mode)) {
            return Ok(mode);
        }
        let mode = match known.into_iter().next() {
            Some(mode) => mode,
            None => {
                let name = [OURS, format!("{width}x{height}").as_bytes()].concat();
                let (htotal, vtotal) = (width, height);
                let info = ModeInfo {
                    width,
                    height,
                    // What a screen of that size has at 60 pictures a second; nobody looks at it.
                    dot_clock: u32::from(width) * u32::from(height) * 60,
                    hsync_start: width,
                    hsync_end: width,
                    htotal,
                    vsync_start: height,
                    vsync_end: height,
                    vtotal,
                    name_len: u16::try_from(name.len()).unwrap_or(0),
                    ..ModeInfo::default()
                };
                x.randr_create_mode(root, info, &name)?.reply()?.mode
            }
        };
        x.randr_add_output_mode(head.output, mode)?.check()?;
        Ok(mode)
    }

    fn change(&self, head: &Head, mode: u32, width: u16, height: u16) -> Result<(), XError> {
        // A head may not show more than there is.
        if width < head.before.width || height < head.before.height {
            self.set(head, x11rb::NONE)?;
        }
        self.screen_size(width, height)?;
        self.set(head, mode)
    }

    fn screen_size(&self, width: u16, height: u16) -> Result<(), XError> {
        let length = |pixels: u16| {
            let millimetres = (f64::from(pixels) / DOTS_PER_INCH * MILLIMETRES_PER_INCH).round();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most 65535 / 96 * 25.4"
            )]
            let millimetres = millimetres as u32;
            millimetres
        };
        let set =
            self.link.x.randr_set_screen_size(self.link.root, width, height, length(width), length(height));
        Ok(set?.check()?)
    }

    fn set(&self, head: &Head, mode: u32) -> Result<(), XError> {
        let outputs: &[u32] = if mode == x11rb::NONE { &[] } else { &[head.output] };
        let (x, now) = (&self.link.x, x11rb::CURRENT_TIME);
        let set = x.randr_set_crtc_config(head.crtc, now, now, 0, 0, mode, Rotation::ROTATE0, outputs)?;
        match set.reply()?.status {
            SetConfig::SUCCESS => Ok(()),
            status => Err(XError::Refused(format!("the mode was not set ({status:?})"))),
        }
    }

    /// Modes of earlier sizes.
    fn forget_modes(&self, head: &Head, current: u32) -> Result<(), XError> {
        let mut names = head.resources.names.as_slice();
        for mode in &head.resources.modes {
            let Some((name, rest)) = names.split_at_checked(mode.name_len.into()) else { break };
            names = rest;
            if mode.id != current && name.starts_with(OURS) {
                self.link.x.randr_delete_output_mode(head.output, mode.id)?.ignore_error();
                self.link.x.randr_destroy_mode(mode.id)?.ignore_error();
            }
        }
        Ok(())
    }
}
