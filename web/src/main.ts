// Starts the app.
import 'uplot/dist/uPlot.min.css';
import './app.css';
import { mount } from 'svelte';
import App from './App.svelte';

document.getElementById('boot')?.remove(); // shown until the script has loaded
mount(App, { target: document.body });
