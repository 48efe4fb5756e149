"""mount.fusestripe(8): the type fusestripe of mount(8) and /etc/fstab."""

from __future__ import annotations

from collections.abc import Iterator

from fusestripe.config import SETTINGS
from fusestripe.manual.troff import head, literal, paragraph, references, tagged

__all__ = ["helper_page"]

ABOUT = """\
mount.fusestripe is what mount(8) calls for the type fusestripe. SPEC is a URL like s3://bucket/prefix, or a
TOML file with routes; it is what /proc/mounts, findmnt(8) and df(1) show. It returns when the tree answers,
and the daemon goes on behind. umount(8) takes the mount away, and the daemon ends. Every mount is read-only,
with nosuid and nodev."""

PLACE = """\
mount(8) looks for it in /sbin alone. Where fusestripe was installed below another prefix, it is linked from
there, not copied. It is run with hardly an environment: at boot credentials are those in root's own files,
those of the machine's role, or in an env_file."""

INSTALLED = "ln -s PREFIX/sbin/mount.fusestripe /sbin/mount.fusestripe"

OPTIONS = (
    ("config=FILE", "A TOML file of settings that goes with a URL."),
    (
        "env_file=FILE",
        "A file of NAME=VALUE lines, as of credentials: they are the daemon's environment. Root or the user "
        "owns it, and others may not read it. A VALUE with quotes or a backslash in it stands in single "
        "quotes, or, with a single quote, in double ones. Nothing is escaped, and no line goes on in the "
        "next.",
    ),
    ("noexec, exec", "Nothing there can be executed, or what the modes say can. The last word counts."),
    ("user, users, owner, group", "Who may mount it: mount(8) sees to that. The daemon is then that user's."),
    (
        "auto, noauto, nofail, _netdev, x-systemd.*",
        "For mount -a and for systemd; x-systemd.automount mounts it when it is first looked into.",
    ),
    ("ro, nosuid, nodev, noatime and the like", "What every mount is anyway."),
    ("suid, dev, remount, allow_root", "Are refused; so is every option that nobody knows, by its name."),
)

FSTAB = """\
s3://bucket/ckpt  /mnt/ckpt  fusestripe  ro,_netdev,nofail,allow_other,cache_dir=/nvme/fusestripe  0 0
/etc/fusestripe/several.toml  /mnt/stores  fusestripe  ro,_netdev,nofail,x-systemd.automount  0 0
"""

COMMANDS = """\
mount -t fusestripe s3://bucket/ckpt /mnt/ckpt -o cache_dir=/nvme/fusestripe,allow_other
mount -t fusestripe gs://bucket/ckpt /mnt/ckpt -o env_file=/etc/fusestripe/gcs.env,uid=ada,umask=027
umount /mnt/ckpt
"""

STATUS = (
    ("0", "It is mounted."),
    ("1", "The command line or the settings cannot be used."),
    ("2", "The system refused."),
    ("4", "What nobody foresaw; FUSESTRIPE_DEBUG=1 shows where."),
    ("8", "It was interrupted."),
    ("32", "It could not be mounted. One line on stderr says why, and what mends it."),
)


def helper_page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from head("mount.fusestripe", 8, "System Administration")
    yield ".SH NAME"
    yield r"mount.fusestripe \- mount an object store by mount(8) or /etc/fstab"
    yield ".SH SYNOPSIS"
    yield r"\fBmount \-t fusestripe\fR SPEC DIR [\-o OPTIONS]"
    yield ".br"
    yield r"\fBmount.fusestripe\fR SPEC DIR [\-sfnv] [\-o OPTIONS]"
    yield ".SH DESCRIPTION"
    yield from paragraph(ABOUT)
    yield ".PP"
    yield from paragraph(PLACE)
    yield from literal(INSTALLED)
    yield ".SH OPTIONS"
    yield from paragraph("Beside those of mount(8), every setting of fusestripe(1) by its name:")
    for setting in SETTINGS:
        if setting.option:
            name = setting.option if setting.kind == "switch" else f"{setting.option}=..."
            yield from tagged(name, f"{setting.meaning[0].upper()}{setting.meaning[1:]}.")
    for tag, meaning in OPTIONS:
        yield from tagged(tag, meaning)
    yield ".SH EXAMPLES"
    yield from paragraph("In /etc/fstab:")
    yield from literal(FSTAB)
    yield ".PP"
    yield from paragraph("By hand:")
    yield from literal(COMMANDS)
    yield ".SH EXIT STATUS"
    for status, meaning in STATUS:
        yield from tagged(status, meaning)
    yield ".SH SEE ALSO"
    yield references(("fusestripe(1)", "mount(8)", "umount(8)", "fstab(5)", "systemd.mount(5)"))
