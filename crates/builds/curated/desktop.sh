# Runs as root inside the new system, after its packages were installed: the desktop's user, its session and its settings.
set -eu

id desktop >/dev/null 2>&1 || useradd --create-home --user-group --shell /bin/bash desktop
echo 'desktop ALL=(ALL) NOPASSWD:ALL' >/etc/sudoers.d/90-desktop
chmod 0440 /etc/sudoers.d/90-desktop
ln -sf python3 /usr/bin/python
install -d -m 0755 /home/user /app
install -d -m 1777 /tmp/.X11-unix

cat >/usr/local/bin/start-desktop <<'END'
#!/bin/sh
# The desktop, as its user: an X server that is its own VNC server and can be resized, a session in it, and noVNC in front.
# VNC is to be had through a socket of this user only, and noVNC through port 6080 of the loopback, which is not to be reached
# from outside unless it is published. Whatever ends is started again.
export DISPLAY=:1 LANG=C.UTF-8 XDG_RUNTIME_DIR=/tmp/desktop-session
export DBUS_SESSION_BUS_ADDRESS=unix:path=/tmp/desktop-session/bus
cd "$HOME" || exit 1
rm -rf "$XDG_RUNTIME_DIR" /tmp/.X1-lock /tmp/.X11-unix/X1
mkdir -m 0700 "$XDG_RUNTIME_DIR" || exit 1

keep() {
	while :; do
		"$@" </dev/null >/dev/null 2>&1
		sleep 1
	done
}

keep dbus-daemon --session --nofork --nopidfile --address="$DBUS_SESSION_BUS_ADDRESS" &
keep websockify --web /usr/share/novnc --unix-target "$XDG_RUNTIME_DIR/vnc" 127.0.0.1:6080 &
while :; do
	rm -f /tmp/.X1-lock /tmp/.X11-unix/X1 "$XDG_RUNTIME_DIR/vnc"
	Xtigervnc :1 -geometry 1280x800 -depth 24 -dpi 96 -desktop Desktop -nolisten tcp -rfbport -1 \
		-rfbunixpath "$XDG_RUNTIME_DIR/vnc" -rfbunixmode 384 -SecurityTypes None -AlwaysShared -AcceptSetDesktopSize \
		</dev/null >/dev/null 2>&1 &
	server=$!
	until xprop -root >/dev/null 2>&1 || ! kill -0 "$server" 2>/dev/null; do sleep 0.05; done
	xsetroot -solid '#2c4a63' -cursor_name left_ptr
	keep openbox &
	window_manager=$!
	keep pcmanfm --desktop --profile desktop &
	wallpaper=$!
	keep tint2 &
	panel=$!
	wait "$server"
	kill "$window_manager" "$wallpaper" "$panel" 2>/dev/null
	sleep 0.5
done
END
chmod 0755 /usr/local/bin/start-desktop

# Chromium builds its own walls out of namespaces that a sandbox may not make; the sandbox is the wall here. Its warning about
# that, first-run pages, and a keyring that would ask for a password are in the way of whoever drives it. There is no graphics
# processor.
cat >/etc/chromium.d/superserve <<'END'
export CHROMIUM_FLAGS="$CHROMIUM_FLAGS --no-sandbox --test-type --no-first-run --password-store=basic --disable-gpu --disable-dev-shm-usage"
END

settings=/home/desktop/.config/pcmanfm/desktop
install -d /etc/xdg/openbox /etc/xdg/tint2 /etc/gtk-3.0 /usr/share/backgrounds "$settings"

cat >/etc/xdg/openbox/menu.xml <<'END'
<?xml version="1.0" encoding="UTF-8"?>
<openbox_menu xmlns="http://openbox.org/3.4/menu">
  <menu id="root-menu" label="Desktop">
    <item label="Web browser"><action name="Execute"><command>chromium</command></action></item>
    <item label="Terminal"><action name="Execute"><command>x-terminal-emulator</command></action></item>
    <item label="Text editor"><action name="Execute"><command>mousepad</command></action></item>
    <item label="Files"><action name="Execute"><command>pcmanfm --profile desktop</command></action></item>
  </menu>
</openbox_menu>
END

# One desktop, no animation, and windows that open where there is room.
sed -i -e 's#<number>4</number>#<number>1</number>#' -e 's#<animateIconify>yes#<animateIconify>no#' \
	-e 's#<name>Clearlooks</name>#<name>Clearlooks-Olive</name>#' /etc/xdg/openbox/rc.xml

# The grey-blue of the root window, a little lighter towards the top.
python3 - <<'END'
import struct, zlib
width, height = 16, 800
rows = bytearray()
for y in range(height):
    share = y / height
    pixel = bytes(int(a + (b - a) * share) for a, b in zip((0x4d, 0x79, 0x9b), (0x22, 0x38, 0x4d)))
    rows += b"\0" + pixel * width
chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
with open("/usr/share/backgrounds/desktop.png", "wb") as file:
    file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
               + chunk(b"IDAT", zlib.compress(bytes(rows), 9)) + chunk(b"IEND", b""))
END

cat >"$settings/desktop-items-0.conf" <<'END'
[*]
wallpaper_mode=stretch
wallpaper_common=1
wallpaper=/usr/share/backgrounds/desktop.png
desktop_bg=#2c4a63
desktop_fg=#ffffff
desktop_shadow=#1b2a36
desktop_font=Sans 11
show_wm_menu=0
sort=ftime;ascending;
show_documents=0
show_trash=0
show_mounts=0
END
cat >"$settings/pcmanfm.conf" <<'END'
[config]
bm_open_method=0

[volume]
mount_on_startup=0
mount_removable=0
autorun=0

[ui]
always_show_tabs=0
win_width=860
win_height=540
view_mode=icon
show_hidden=0
END

cat >/etc/xdg/tint2/tint2rc <<'END'
rounded = 0
border_width = 0
background_color = #1b2a36 100
rounded = 3
border_width = 0
background_color = #ffffff 12
rounded = 3
border_width = 0
background_color = #ffffff 28
panel_items = LTC
panel_size = 100% 34
panel_margin = 0 0
panel_padding = 6 3 6
panel_background_id = 1
panel_position = bottom center horizontal
panel_layer = top
strut_policy = follow_size
wm_menu = 1
taskbar_mode = single_desktop
taskbar_padding = 0 0 4
task_text = 1
task_icon = 1
task_maximum_size = 190 28
task_padding = 6 2 6
task_font = Sans 10
task_font_color = #ffffff 100
task_background_id = 2
task_active_background_id = 3
mouse_left = toggle_iconify
mouse_middle = none
mouse_right = close
time1_format = %H:%M
time1_font = Sans 10
clock_font_color = #ffffff 100
clock_padding = 6 0
launcher_padding = 2 2 8
launcher_icon_size = 24
launcher_icon_theme = Adwaita
launcher_icon_theme_override = 0
startup_notifications = 0
launcher_tooltip = 1
launcher_item_app = /usr/share/applications/chromium.desktop
launcher_item_app = /usr/share/applications/desktop-terminal.desktop
launcher_item_app = /usr/share/applications/org.xfce.mousepad.desktop
launcher_item_app = /usr/share/applications/desktop-files.desktop
END

launcher() {
	printf '[Desktop Entry]\nType=Application\nName=%s\nExec=%s\nIcon=%s\nNoDisplay=true\n' "$2" "$3" "$4" \
		>"/usr/share/applications/$1.desktop"
}
launcher desktop-terminal Terminal x-terminal-emulator utilities-terminal
launcher desktop-files Files 'pcmanfm --profile desktop' system-file-manager

cat >/etc/gtk-3.0/settings.ini <<'END'
[Settings]
gtk-font-name=Sans 10
gtk-icon-theme-name=Adwaita
gtk-enable-animations=0
END

cat >>/etc/X11/app-defaults/XTerm <<'END'

*utf8: 2
*faceName: DejaVu Sans Mono
*faceSize: 11
*background: #15202b
*foreground: #e8eef2
*scrollBar: false
*saveLines: 5000
*selectToClipboard: true
END

chown -R desktop:desktop /home/desktop
fc-cache -f >/dev/null 2>&1 || :
