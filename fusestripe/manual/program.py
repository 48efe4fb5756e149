"""fusestripe(1): every command and every setting, as they say it themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from fusestripe.cli import cli
from fusestripe.config import SETTINGS, Setting
from fusestripe.manual.troff import escaped, head, literal, paragraph, references, tagged
from fusestripe.units import format_size

__all__ = ["default_of", "program_page"]

ABOUT = """\
fusestripe mounts object stores, HDFS and web servers as one directory tree. It reads every large file as
parallel stripes by range request, keeps the stripes on local NVMe, and lets nodes of one job take them from
each other. Every read is of the version that was there when the file was opened; every stripe in the cache
has a checksum. What fails says so in one line on stderr, with what mends it."""

PRECEDENCE = """\
Flags come before the environment, that before the TOML file, that before the defaults. What a [[route]]
says of itself stands over what is said for all. The environment and -o have the names below, -o separated
by commas; the file has them as keys of its tables. Sizes are bytes or like 8MiB, times are seconds or like
5m."""

TOML = """\
[cache]
dir = "/nvme/fusestripe"
size = "500GiB"

[[route]]
path = "/ckpt"
source = "hdfs://nameservice1/checkpoints"

[[route]]
path = "/models"
source = "s3://models/llm"
endpoint = "http://host:8333"
"""

ENVIRONMENT = (
    ("FUSESTRIPE_*", "Settings: see SETTINGS."),
    ("FUSESTRIPE_DEBUG", "1: what nobody foresaw is shown with its traceback."),
    ("FUSESTRIPE_RUNTIME_DIR", "The directory of control sockets and logs: see FILES."),
    (
        "FUSESTRIPE_HTTP_TOKEN",
        "A bearer token for the web servers that routes name; ~/.netrc is asked first.",
    ),
    (
        "AWS_*",
        "Credentials, profile, region and endpoint for s3://, with ~/.aws, as the AWS tools find them. "
        "Credentials of `aws login` need the extra aws.",
    ),
    (
        "GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST",
        "For gs://, beside gcloud's own files and the metadata server. Credentials need the extra gcs.",
    ),
    (
        "AZURE_STORAGE_ACCOUNT, _KEY, _SAS_TOKEN, _CONNECTION_STRING",
        "For az://, abfs:// and abfss://. Other identities (AZURE_CLIENT_ID and so on) need the extra azure.",
    ),
    (
        "HADOOP_CONF_DIR, HADOOP_USER_NAME, KRB5CCNAME, KRB5_CLIENT_KTNAME",
        "For hdfs:// and viewfs://, which need the extra hdfs. hdfs+libhdfs:// needs the extra arrow, and "
        "HADOOP_HOME or ARROW_LIBHDFS_DIR, JAVA_HOME and CLASSPATH.",
    ),
    ("SLURM_*, RANK, WORLD_SIZE and so on", "The nodes and ranks of a job, for peers and --rank-local."),
)

FILES = (
    ("/var/cache/fusestripe", "The cache of root, if no other is set."),
    ("$XDG_CACHE_HOME/fusestripe, ~/.cache/fusestripe", "The same for other users."),
    (
        "/run/fusestripe, $XDG_RUNTIME_DIR/fusestripe",
        "Control sockets and logs of the daemons, of root and of others; `fusestripe status` names the log.",
    ),
    ("fusestripe.toml", "In a job's working directory: what the job asks for (fusestripe job)."),
    ("/etc/fuse.conf", "user_allow_other there lets users other than root use --allow-other."),
)

STATUS = (
    ("0", "All went well. For mount: the tree answers."),
    ("1", "Something failed, or is missing; one line on stderr says what, and what mends it."),
    ("2", "The command line cannot be understood."),
    ("3", "fusestripe job start: the job asks for nothing."),
    ("130", "Ended by Ctrl-C."),
)

SEE_ALSO = ("fusermount3(1)", "fuse(4)", "mount(8)", "mount.fusestripe(8)", "umount(8)")


def program_page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def default_of(setting: Setting) -> str:
    """Its default as a person writes it; "" where there is none."""
    if setting.default in (None, "", ()):
        return ""
    if setting.kind == "size" and isinstance(setting.default, int):
        return format_size(setting.default).replace(" ", "")
    if isinstance(setting.default, bool):
        return str(setting.default).lower()
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


def _lines() -> Iterator[str]:
    commands = list(_commands(cli, "fusestripe"))
    yield from head("fusestripe", 1, "User Commands")
    yield from (".SH NAME", rf"fusestripe \- {escaped(_first_sentence(cli.help or ''))}")
    yield ".SH SYNOPSIS"
    for name, command in commands:
        yield from _synopsis(name, command)
    yield ".SH DESCRIPTION"
    yield from paragraph(ABOUT)
    yield ".SH COMMANDS"
    for name, command in commands:
        yield from _command(name, command)
    yield ".SH SETTINGS"
    yield from paragraph(PRECEDENCE)
    for setting in SETTINGS:
        yield from _setting(setting)
    yield ".SH EXAMPLES"
    yield from paragraph("A file of settings, for `fusestripe mount config.toml /mnt`:")
    yield from literal(TOML)
    for _, command in commands:
        yield from literal((command.epilog or "").partition("Example: ")[2])
    for title, rows in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES), ("EXIT STATUS", STATUS)):
        yield f".SH {title}"
        for tag, meaning in rows:
            yield from tagged(tag, meaning)
    yield ".SH SEE ALSO"
    yield references(SEE_ALSO)


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that does something, and its whole name, in the order of the pages of help."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        elif command is not None and not command.hidden:
            yield f"{path} {name}", command


def _synopsis(name: str, command: click.Command) -> Iterator[str]:
    pieces = command.collect_usage_pieces(click.Context(command, info_name=name))
    yield rf"\fB{escaped(name)}\fR {' '.join(map(escaped, pieces))}"
    yield ".br"


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    yield f'.SS "{escaped(" ".join((name, *pieces)))}"'
    for number, part in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        if part.startswith("\b"):
            yield from literal(part.lstrip("\b\n"))
            continue
        yield from [".PP"] if number else []
        yield from paragraph(part)
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None or isinstance(parameter, click.Argument):  # which the text tells of
            continue
        tag, meaning = record
        if parameter.name == "options":
            meaning = "Any setting by its name, separated by commas: see SETTINGS."
        yield from tagged(tag, meaning)


def _setting(setting: Setting) -> Iterator[str]:
    names = [f"[{setting.section}] {setting.key}"]
    names += [setting.flag] if setting.flag else []
    names += [setting.environment, f"-o {setting.option}"] if setting.option else []
    default = default_of(setting)
    meaning = setting.meaning[0].upper() + setting.meaning[1:]
    yield from tagged(", ".join(names), meaning + (f" (default: {default})." if default else "."))


def _first_sentence(text: str) -> str:
    """Of a command's help, as the line of a whatis database."""
    sentence = " ".join(text.split("\n\n")[0].split()).rstrip(".")
    return sentence[0].lower() + sentence[1:]
