"""The configuration of Peen: what may be set, what it means, and whether it makes sense."""

from __future__ import annotations

from peen.settings.address import ListenAddress as ListenAddress
from peen.settings.address import parse_listen_address as parse_listen_address
from peen.settings.directories import contains as contains
from peen.settings.directories import lexical_path as lexical_path
from peen.settings.directories import overlap as overlap
from peen.settings.directories import resolve_path as resolve_path
from peen.settings.environment import check_open_files as check_open_files
from peen.settings.environment import command_environment as command_environment
from peen.settings.load import load_settings as load_settings
from peen.settings.model import Settings as Settings
from peen.settings.model import prepare_directories as prepare_directories
from peen.settings.page import configuration_page as configuration_page
from peen.settings.problems import FileSettingInvalid as FileSettingInvalid
from peen.settings.problems import SettingsInvalid as SettingsInvalid
from peen.settings.upstreams import EMBEDDED_MODEL as EMBEDDED_MODEL
